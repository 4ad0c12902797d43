"""What commands print: tables, details and progress."""
