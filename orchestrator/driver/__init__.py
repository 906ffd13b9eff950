"""What a sweep's driver decides: which trial is next, which is tried again, whether to end."""
