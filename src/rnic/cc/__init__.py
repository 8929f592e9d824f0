"""Congestion and rate control behind one interface. Nothing is here yet: queue pairs send at window speed."""
