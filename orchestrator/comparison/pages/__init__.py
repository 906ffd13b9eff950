"""What a comparison leaves for readers: its page, and runs as peft keeps them."""
