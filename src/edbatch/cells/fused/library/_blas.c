/* Matrix products of a batch by MKL's batched GEMM. A call of torch.bmm, with its views, takes some 6 us longer.

Functions are called like generated kernels: with the number of the batch and the address of numbers of 64 bits. These
are: those that every kernel gets (see `FIRST_ARGUMENTS` in `kernel_text.py`); the address of the GEMM, the bytes of an
element, how many products there are (together a `Header`); then for each product the fields of `Product` or, where
matrices differ per row, of `RowProduct`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { MOST_PRODUCTS = 16, MOST_BLOCKS = 128, ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 };
/* Multiplications of a call that one thread does alone: others would take as long to wake. If another program keeps the
   other cores busy, waiting for a thread takes milliseconds. */
enum { FEW = 1 << 17 };
enum { LOCAL, OWN, INDEX, SHARED }; /* where the rows of an operand lie, see `kernel_text.Memory` */

typedef struct {
    int64_t *sizes, *own, *index, step;
    void *gemm;
    int64_t item, count;
} Header;

/* `count` times [B, length] x [length, columns]; the result lies at `out`, block after block. */
typedef struct {
    int64_t rows;                 /* LOCAL, OWN or INDEX */
    char *address;                /* of the first row: LOCAL of the batch, OWN of the type, INDEX of the arena */
    int64_t *begin, *first;       /* INDEX: where a batch's rows begin in `index`; its first row if consecutive */
    char *buffer;                 /* INDEX: memory for gathered rows */
    int64_t is_kept;              /* INDEX: the buffer is for the rows of all batches, which are read again later */
    int64_t width, offset, piece; /* elements: of a row; before its first slice; from one slice to the next */
    int64_t per_piece;            /* how many blocks read the same slice */
    int64_t count, length, columns;
    char *weights;
    int64_t weight_step, weight_stride, is_transposed;
    char *out;
    int64_t is_own; /* whether `out` is memory for all batches of the type */
} Product;

typedef void (*Gemm)(int layout, const int *trans_a, const int *trans_b, const int *m, const int *n, const int *k,
                     const void *alpha, const void **a, const int *lda, const void **b, const int *ldb,
                     const void *beta, void **c, const int *ldc, int groups, const int *sizes);

static int (*set_threads)(int); /* of MKL, for calls of this thread; gives the number before. NULL: there is none */

/* Let MKL use one thread if there is little to do; gives what `end_alone` is to be given. */
static int begin_alone(int64_t work) { return set_threads != NULL && work <= FEW ? set_threads(1) : -1; }

static void end_alone(int before) {
    if (before >= 0) set_threads(before);
}

/* The address of a batch's first row of an operand; rows that are not consecutive are gathered into the buffer. */
static char *rows_of(const Header *h, const Product *p, int64_t b) {
    int64_t bytes = p->width * h->item, size = h->sizes[b];
    if (p->rows == LOCAL) return p->address;
    if (p->rows == OWN) return p->address + h->own[b] * bytes;
    int64_t first = p->first[b * h->step];
    if (first >= 0 && !p->is_kept) return p->address + first * bytes;
    char *buffer = p->is_kept ? p->buffer + h->own[b] * bytes : p->buffer;
    const int64_t *index = h->index + p->begin[b * h->step];
    for (int64_t r = 0; r < size; r++) memcpy(buffer + r * bytes, p->address + index[r] * bytes, bytes);
    return buffer;
}

static int fits(const Header *h) {
    const Product *products = (const Product *)(h + 1);
    int64_t blocks = 0;
    for (int64_t i = 0; i < h->count && i < MOST_PRODUCTS; i++) blocks += products[i].count;
    return h->count <= MOST_PRODUCTS && blocks <= MOST_BLOCKS;
}

static void run(const Header *h, int64_t b) {
    const Product *products = (const Product *)(h + 1);
    int as_it_is[MOST_PRODUCTS], trans[MOST_PRODUCTS], m[MOST_PRODUCTS], n[MOST_PRODUCTS], k[MOST_PRODUCTS];
    int lda[MOST_PRODUCTS], ldb[MOST_PRODUCTS], ldc[MOST_PRODUCTS], sizes[MOST_PRODUCTS];
    double ones[MOST_PRODUCTS], zeros[MOST_PRODUCTS]; /* for float32 only the first half is used */
    const void *left[MOST_BLOCKS], *right[MOST_BLOCKS];
    void *out[MOST_BLOCKS];
    char *starts[MOST_PRODUCTS];
    int at = 0;
    int64_t work = 0;
    for (int64_t i = 0; i < h->count; i++) {
        const Product *p = &products[i];
        work += h->sizes[b] * p->count * p->length * p->columns;
        starts[i] = NULL;
        for (int64_t j = 0; j < i && p->rows == INDEX; j++)
            if (products[j].rows == INDEX && products[j].begin == p->begin) starts[i] = starts[j]; /* gathered before */
        if (starts[i] == NULL) starts[i] = rows_of(h, p, b);
        as_it_is[i] = AS_IT_IS;
        trans[i] = p->is_transposed ? TRANSPOSED : AS_IT_IS;
        m[i] = (int)h->sizes[b], n[i] = (int)p->columns, k[i] = (int)p->length;
        lda[i] = (int)p->width, ldb[i] = (int)p->weight_stride, ldc[i] = (int)p->columns, sizes[i] = (int)p->count;
        if (h->item == sizeof(float)) ((float *)ones)[i] = 1, ((float *)zeros)[i] = 0;
        else ones[i] = 1, zeros[i] = 0;
        for (int64_t g = 0; g < p->count; g++, at++) {
            left[at] = starts[i] + (p->offset + g / p->per_piece * p->piece) * h->item;
            right[at] = p->weights + g * p->weight_step * h->item;
            int64_t first = g * h->sizes[b] + (p->is_own ? h->own[b] : 0);
            out[at] = p->out + first * p->columns * h->item;
        }
    }
    int before = begin_alone(work);
    ((Gemm)h->gemm)(ROW_MAJOR, as_it_is, trans, m, n, k, ones, left, lda, right, ldb, zeros, out, ldc, (int)h->count,
                    sizes);
    end_alone(before);
}

/* A matrix for every row of the batch, or one that all rows share. */
typedef struct {
    int64_t rows;   /* LOCAL, OWN, INDEX or SHARED */
    char *address;  /* of the first row, as in `Product` */
    int64_t *begin; /* INDEX: where a batch's rows begin in `index` */
    int64_t width, offset, stride, is_transposed;
} Matrix;

/* For every row: out = left x right, [m, k] x [k, n], or out += left x right. */
typedef struct {
    int64_t m, n, k, adds;
    Matrix left, right, out;
} RowProduct;

static void *matrix_of(const Header *h, const Matrix *matrix, int64_t b, int64_t r) {
    int64_t row = matrix->rows == LOCAL   ? r
                  : matrix->rows == OWN   ? h->own[b] + r
                  : matrix->rows == INDEX ? h->index[matrix->begin[b * h->step] + r]
                                          : 0;
    return matrix->address + (row * matrix->width + matrix->offset) * h->item;
}

static void run_by_rows(const Header *h, int64_t b) {
    const RowProduct *products = (const RowProduct *)(h + 1);
    const void *left[MOST_BLOCKS], *right[MOST_BLOCKS];
    void *out[MOST_BLOCKS];
    for (int64_t i = 0; i < h->count; i++) {
        const RowProduct *p = &products[i];
        int m = (int)p->m, n = (int)p->n, k = (int)p->k;
        int trans_left = p->left.is_transposed ? TRANSPOSED : AS_IT_IS;
        int trans_right = p->right.is_transposed ? TRANSPOSED : AS_IT_IS;
        int lda = (int)p->left.stride, ldb = (int)p->right.stride, ldc = (int)p->out.stride;
        float one32 = 1, beta32 = (float)p->adds;
        double one64 = 1, beta64 = (double)p->adds;
        int is_single = h->item == sizeof(float);
        int before = begin_alone(h->sizes[b] * p->m * p->n * p->k);
        for (int64_t first = 0; first < h->sizes[b]; first += MOST_BLOCKS) {
            int count = 0;
            for (; count < MOST_BLOCKS && first + count < h->sizes[b]; count++) {
                left[count] = matrix_of(h, &p->left, b, first + count);
                right[count] = matrix_of(h, &p->right, b, first + count);
                out[count] = matrix_of(h, &p->out, b, first + count);
            }
            ((Gemm)h->gemm)(ROW_MAJOR, &trans_left, &trans_right, &m, &n, &k, is_single ? (void *)&one32 : &one64, left,
                            &lda, right, &ldb, is_single ? (void *)&beta32 : &beta64, out, &ldc, 1, &count);
        }
        end_alone(before);
    }
}

static PyObject *call(PyObject *const *args, Py_ssize_t count, void (*function)(const Header *, int64_t)) {
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "products are given the number of a batch and an address");
        return NULL;
    }
    int64_t b = PyLong_AsLongLong(args[0]);
    void *numbers = PyLong_AsVoidPtr(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (function == run && !fits(numbers)) {
        PyErr_SetString(PyExc_ValueError, "too many products for one call");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    function(numbers, b);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *products(PyObject *module, PyObject *const *args, Py_ssize_t count) { return call(args, count, run); }

static PyObject *row_products(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    return call(args, count, run_by_rows);
}

static PyObject *use_threads(PyObject *module, PyObject *address) {
    set_threads = (int (*)(int))PyLong_AsVoidPtr(address);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"use_threads", (PyCFunction)use_threads, METH_O, "The address of MKL's function that sets a thread's threads, or 0."},
    {"products", (PyCFunction)(void (*)(void))products, METH_FASTCALL, "products(batch, address of numbers)"},
    {"row_products", (PyCFunction)(void (*)(void))row_products, METH_FASTCALL, "row_products(batch, address of numbers)"},
    {NULL},
};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_blas",
    .m_doc = "Products of batches by MKL.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__blas(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (PyModule_AddIntConstant(module, "MOST_PRODUCTS", MOST_PRODUCTS) < 0 ||
                           PyModule_AddIntConstant(module, "MOST_BLOCKS", MOST_BLOCKS) < 0))
        Py_CLEAR(module);
    return module;
}
