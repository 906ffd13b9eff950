"""What is shown of an evaluation: tables in the terminal, and a page with figures."""
