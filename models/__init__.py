"""What published models cache, and the serving loop that measures it. Free of torch."""
