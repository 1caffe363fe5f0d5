"""Code that others bring: found, agreed to, loaded, and kept from harming the rest."""
