"""edbatch."""
