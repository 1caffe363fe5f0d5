"""Programs as chat partners: signed POSTs come in, signed POSTs go out."""
