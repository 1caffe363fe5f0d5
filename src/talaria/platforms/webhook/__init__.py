"""Programs as chat partners, through signed POST requests both ways."""
