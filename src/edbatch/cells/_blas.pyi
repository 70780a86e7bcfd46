"""What `_blas.c` makes."""

MOST_PRODUCTS: int
MOST_BLOCKS: int

def products(batch: int, address: int, /) -> None:
    """Compute the products of a batch that the numbers at an address tell of."""
