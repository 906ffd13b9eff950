"""What `tinyattn evaluate` shows of an evaluation: tables in the terminal, a page with figures."""
