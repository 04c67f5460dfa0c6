"""What works behind the API: it sees every change, and writes others."""
