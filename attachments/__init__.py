"""What an attachment is: its rows, its bytes, its type, and the doors that show it. See docs/architecture.md."""
