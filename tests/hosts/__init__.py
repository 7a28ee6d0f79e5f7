"""Several hosts on one machine, their links, and what must hold while those are cut."""
