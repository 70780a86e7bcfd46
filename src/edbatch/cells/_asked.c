/* Answers to the one question of torch's C++ that must not be interrupted: on which device a fake tensor is.

C++ asks for the device of a tensor in functions that may not fail: a Ctrl-C while Python answers ends the process. So
`__torch_dispatch__` of our modes and of fake tensors begins here. Ctrl-C is noticed by Python alone, never in C. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *mode_name, *device_name, *inside_name;

typedef struct {
    PyObject_HEAD
    PyObject *function; /* `__torch_dispatch__`, as it stands in a class, or bound */
    PyObject *question; /* the op that asks for a device */
    PyObject *meta;     /* the device that kernels are told */
} Asked;

static PyTypeObject AskedType;

static PyObject *asked_make(PyTypeObject *type, PyObject *function, PyObject *question, PyObject *meta) {
    Asked *self = (Asked *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->function = Py_NewRef(function);
    self->question = Py_NewRef(question);
    self->meta = Py_NewRef(meta);
    return (PyObject *)self;
}

static PyObject *asked_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *function, *question, *meta;
    if (!PyArg_ParseTuple(args, "OOO", &function, &question, &meta)) return NULL;
    return asked_make(type, function, question, meta);
}

static PyObject *asked_get(Asked *self, PyObject *instance, PyObject *owner) {
    descrgetfunc get = Py_TYPE(self->function)->tp_descr_get;
    PyObject *bound = get == NULL ? Py_NewRef(self->function) : get(self->function, instance, owner);
    if (bound == NULL) return NULL;
    PyObject *result = asked_make(&AskedType, bound, self->question, self->meta);
    Py_DECREF(bound);
    return result;
}

/* The device of a fake tensor; NULL, without an error, if it is none. */
static PyObject *answer(Asked *self, PyObject *tensor) {
    PyObject *result = NULL, *mode = PyObject_GetAttr(tensor, mode_name);
    PyObject *is_inside = mode == NULL ? NULL : PyObject_GetAttr(mode, inside_name);
    if (is_inside != NULL)
        result = is_inside == Py_True ? Py_NewRef(self->meta) : PyObject_GetAttr(tensor, device_name);
    Py_XDECREF(mode);
    Py_XDECREF(is_inside);
    if (result == NULL) PyErr_Clear();
    return result;
}

static PyObject *asked_call(Asked *self, PyObject *args, PyObject *keywords) { /* op, types, its arguments, keywords */
    if (PyTuple_GET_SIZE(args) >= 3 && PyTuple_GET_ITEM(args, 0) == self->question) {
        PyObject *tensors = PyTuple_GET_ITEM(args, 2);
        PyObject *found = NULL;
        if (PyTuple_Check(tensors) && PyTuple_GET_SIZE(tensors) == 1) found = answer(self, PyTuple_GET_ITEM(tensors, 0));
        if (found != NULL) return found;
    }
    return PyObject_Call(self->function, args, keywords);
}

static PyObject *asked_getattro(Asked *self, PyObject *name) { /* torch looks at `__self__` */
    PyObject *found = PyObject_GenericGetAttr((PyObject *)self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(self->function, name);
}

static int asked_traverse(Asked *self, visitproc visit, void *arg) {
    Py_VISIT(self->function);
    Py_VISIT(self->question);
    Py_VISIT(self->meta);
    return 0;
}

static int asked_clear(Asked *self) {
    Py_CLEAR(self->function);
    Py_CLEAR(self->question);
    Py_CLEAR(self->meta);
    return 0;
}

static void asked_dealloc(Asked *self) {
    PyObject_GC_UnTrack(self);
    asked_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject AskedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.cells._asked.Asked",
    .tp_doc = "Asked(function, question, meta): a `__torch_dispatch__` that answers one op without Python.",
    .tp_basicsize = sizeof(Asked),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = asked_new,
    .tp_call = (ternaryfunc)asked_call,
    .tp_getattro = (getattrofunc)asked_getattro,
    .tp_descr_get = (descrgetfunc)asked_get,
    .tp_traverse = (traverseproc)asked_traverse,
    .tp_clear = (inquiry)asked_clear,
    .tp_dealloc = (destructor)asked_dealloc,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_asked",
    .m_doc = "The device of fake tensors, in C.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__asked(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    mode_name = PyUnicode_InternFromString("fake_mode");
    device_name = PyUnicode_InternFromString("fake_device");
    inside_name = PyUnicode_InternFromString("in_kernel_invocation");
    if (mode_name == NULL || device_name == NULL || inside_name == NULL || PyModule_AddType(module, &AskedType) < 0)
        Py_CLEAR(module);
    return module;
}
