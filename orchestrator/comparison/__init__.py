"""Comparison of adaptation methods at equal parameters, equal search and fresh seeds."""
