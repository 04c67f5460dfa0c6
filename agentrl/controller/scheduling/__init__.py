"""What is launched, how many at once, who is waited for, and which groups make a batch."""
