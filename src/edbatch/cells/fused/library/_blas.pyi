"""What `_blas.c` makes."""

MOST_PRODUCTS: int
MOST_BLOCKS: int

def products(batch: int, address: int, /) -> None:
    """Compute the products of a batch that the numbers at an address tell of."""

def row_products(batch: int, address: int, /) -> None:
    """The same for products of matrices of which every row has its own."""

def use_threads(address: int, /) -> None:
    """Give the address of MKL's function that sets the number of threads, or 0."""
