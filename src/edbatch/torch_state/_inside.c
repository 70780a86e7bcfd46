/* Temporary changes that are taken back whatever interrupts them: `surroundings.py` says what for.

Python notices Ctrl-C between two of its own instructions, never inside a function written in C. So contexts are entered
and left here, and methods of torch are replaced and put back here: no interrupt comes between a change and what takes
it back. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

enum { MOST_CONTEXTS = 16, TRIES = 10 };

static PyObject *enter_name, *exit_name;

/* ---- inside: a `with` statement that no interrupt can split */

static PyObject *behind(PyObject *error) {
    PyObject *cause = PyException_GetCause(error);
    return cause != NULL ? cause : PyException_GetContext(error);
}

/* Replace the present error by the KeyboardInterrupt that caused it, if one did. C code that does not expect an
interrupt gives a SystemError instead, and torch's own clean-up after one may give a RuntimeError. */
static void uncover_interrupt(void) {
    PyObject *kind, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_SystemError) && !PyErr_ExceptionMatches(PyExc_RuntimeError)) return;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    PyObject *cause = value == NULL ? NULL : behind(value);
    for (int i = 0; i < TRIES && cause != NULL && !PyErr_GivenExceptionMatches(cause, PyExc_KeyboardInterrupt); i++)
        Py_SETREF(cause, behind(cause)); /* C code that goes on after an error raises it again and again */
    if (cause != NULL && PyErr_GivenExceptionMatches(cause, PyExc_KeyboardInterrupt)) {
        PyErr_SetObject((PyObject *)Py_TYPE(cause), cause);
        Py_XDECREF(kind);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else {
        PyErr_Restore(kind, value, trace);
    }
    Py_XDECREF(cause);
}

/* After an interrupt: clear the frames of the interrupted function, the innermost first. They may hold contexts that
had no time to be left, and end when the frame drops them; else that would wait until somebody drops the error. An
interrupt is an error that is no Exception: a KeyboardInterrupt, or the SystemExit of a handler for SIGTERM. */
static void empty_frames(void) {
    PyObject *kind, *value, *trace;
    if (PyErr_ExceptionMatches(PyExc_Exception)) return;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *frames = PyList_New(0);
    for (PyTracebackObject *at = (PyTracebackObject *)trace; frames != NULL && at != NULL; at = at->tb_next)
        if (PyList_Append(frames, (PyObject *)at->tb_frame) < 0) PyErr_Clear();
    for (Py_ssize_t i = frames == NULL ? 0 : PyList_GET_SIZE(frames); i > 0; i--) {
        PyObject *done = PyObject_CallMethod(PyList_GET_ITEM(frames, i - 1), "clear", NULL);
        if (done == NULL) PyErr_Clear(); /* the frame still runs */
        Py_XDECREF(done);
    }
    Py_XDECREF(frames);
    PyErr_Clear();
    PyErr_Restore(kind, value, trace);
}

/* Leave a context. If that raises (an interrupt, or the error of another signal's handler), it is tried again, so that
the context is left all the same. The first error is the one that is raised in the end. */
static void leave(PyObject *context) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    for (int tries = 0; tries < TRIES; tries++) {
        PyObject *done = PyObject_CallMethodObjArgs(context, exit_name, Py_None, Py_None, Py_None, NULL);
        if (done != NULL) {
            Py_DECREF(done);
            break;
        }
        if (kind == NULL) PyErr_Fetch(&kind, &value, &trace);
        else PyErr_Clear();
    }
    if (kind != NULL) PyErr_Restore(kind, value, trace);
}

static PyObject *inside(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
    if (count < 2 || !PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) > MOST_CONTEXTS)
        return PyErr_Format(PyExc_TypeError, "inside takes a tuple of at most %d contexts and a function", MOST_CONTEXTS);
    PyObject *contexts = args[0], *result = NULL;
    Py_ssize_t entered = 0, size = PyTuple_GET_SIZE(contexts);
    for (; entered < size; entered++) {
        PyObject *done = PyObject_CallMethodNoArgs(PyTuple_GET_ITEM(contexts, entered), enter_name);
        if (done == NULL) break;
        Py_DECREF(done);
    }
    if (entered == size) result = PyObject_Vectorcall(args[1], args + 2, count - 2, keywords);
    if (result == NULL) {
        uncover_interrupt();
        empty_frames();
    }
    while (entered > 0) leave(PyTuple_GET_ITEM(contexts, --entered));
    if (PyErr_Occurred()) Py_CLEAR(result);
    return result;
}

/* ---- Stay: a context in which methods of torch are replaced; the first to enter does so, the last to leave ends it */

static PyObject *replaced;      /* (holder, name, original, ours), ...: what is in place while there are stays */
static Py_ssize_t num_stays;    /* how many there are, in all threads */
static Py_ssize_t num_pauses;   /* how many stays keep the garbage collector off */
static int was_collecting;

typedef struct {
    PyObject_HEAD
    PyObject *places;    /* a tuple like `replaced` */
    PyObject *shortcuts; /* ((dict, key, value), ...): entries to add meanwhile; NULL: leave the collector on, too */
    PyObject *placed;    /* the shortcuts that were added: those whose keys were not there */
    char is_begun;
} Stay;

static int put(PyObject *holder, PyObject *name, PyObject *value) {
    if (!PyType_Check(holder)) return PyObject_SetAttr(holder, name, value);
    /* PyObject_SetAttr would update the C function behind the method in all subclasses, and nn.Module has hundreds.
    Here that function stays the same: it is the one that looks up the name. */
    PyTypeObject *type = (PyTypeObject *)holder;
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return PyObject_SetAttr(holder, name, value);
    if (PyDict_SetItem(type->tp_dict, name, value) < 0) return -1;
    PyType_Modified(type);
    return 0;
}

static PyObject *standing(PyObject *holder, PyObject *name) { /* what is there now, borrowed */
    PyObject *dict = PyType_Check(holder) ? ((PyTypeObject *)holder)->tp_dict : PyModule_GetDict(holder);
    return dict == NULL ? NULL : PyDict_GetItemWithError(dict, name);
}

static int put_all(PyObject *places, int ours) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
        PyObject *place = PyTuple_GET_ITEM(places, i), *holder = PyTuple_GET_ITEM(place, 0);
        PyObject *name = PyTuple_GET_ITEM(place, 1), *now = standing(holder, name);
        if (!ours && now != PyTuple_GET_ITEM(place, 3)) continue; /* somebody else has replaced it since */
        if (put(holder, name, PyTuple_GET_ITEM(place, ours ? 3 : 2)) < 0) return -1;
    }
    return 0;
}

static int remove_shortcuts(Stay *self) {
    PyObject *placed = self->placed;
    self->placed = NULL;
    if (placed == NULL) return 0;
    int failed = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(placed); i++) {
        PyObject *entry = PyList_GET_ITEM(placed, i), *dict = PyTuple_GET_ITEM(entry, 0);
        PyObject *now = PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(entry, 1));
        if (now == PyTuple_GET_ITEM(entry, 2)) failed |= PyDict_DelItem(dict, PyTuple_GET_ITEM(entry, 1)) < 0;
    }
    Py_DECREF(placed);
    return failed ? -1 : 0;
}

static int end(Stay *self) {
    if (!self->is_begun) return 0;
    self->is_begun = 0;
    int failed = remove_shortcuts(self) < 0;
    if (--num_stays == 0) {
        failed |= put_all(replaced, 0) < 0;
        Py_CLEAR(replaced);
    }
    if (self->shortcuts != NULL && --num_pauses == 0 && was_collecting) PyGC_Enable();
    return failed ? -1 : 0;
}

static PyObject *stay_enter(Stay *self, PyObject *nothing) {
    if (self->is_begun || self->places == NULL) return PyErr_Format(PyExc_RuntimeError, "a stay begins once");
    self->is_begun = 1;
    if (num_stays++ == 0) replaced = Py_NewRef(self->places);
    int failed = num_stays == 1 && put_all(replaced, 1) < 0;
    if (self->shortcuts != NULL) {
        if (num_pauses++ == 0) was_collecting = PyGC_Disable();
        self->placed = PyList_New(0);
        failed |= self->placed == NULL;
        for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(self->shortcuts); i++) {
            PyObject *entry = PyTuple_GET_ITEM(self->shortcuts, i), *dict = PyTuple_GET_ITEM(entry, 0);
            if (PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(entry, 1)) != NULL) continue;
            failed = PyList_Append(self->placed, entry) < 0 ||
                     PyDict_SetItem(dict, PyTuple_GET_ITEM(entry, 1), PyTuple_GET_ITEM(entry, 2)) < 0;
        }
    }
    if (!failed) Py_RETURN_NONE;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    end(self);
    PyErr_Restore(kind, value, trace);
    return NULL;
}

static PyObject *stay_exit(Stay *self, PyObject *error) { return end(self) < 0 ? NULL : Py_NewRef(Py_None); }

static int are_tuples(PyObject *all, Py_ssize_t size) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); i++) {
        PyObject *item = PyTuple_GET_ITEM(all, i);
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != size) return 0;
        PyObject *holder = PyTuple_GET_ITEM(item, 0);
        if (size == 3 ? !PyDict_Check(holder) : !PyType_Check(holder) && !PyModule_Check(holder)) return 0;
    }
    return 1;
}

static int stay_init(Stay *self, PyObject *args, PyObject *keywords) {
    PyObject *places, *shortcuts = NULL;
    if (!PyArg_ParseTuple(args, "O!|O!", &PyTuple_Type, &places, &PyTuple_Type, &shortcuts)) return -1;
    if (self->is_begun || !are_tuples(places, 4) || (shortcuts != NULL && !are_tuples(shortcuts, 3))) {
        PyErr_SetString(PyExc_TypeError, "a stay takes ((class or module, name, original, ours), ...) and, perhaps, "
                                         "((dict, key, value), ...)");
        return -1;
    }
    Py_XSETREF(self->places, Py_NewRef(places));
    Py_XSETREF(self->shortcuts, Py_XNewRef(shortcuts));
    return 0;
}

static void stay_dealloc(Stay *self) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (end(self) < 0) PyErr_WriteUnraisable(NULL);
    PyErr_Restore(kind, value, trace);
    Py_CLEAR(self->places);
    Py_CLEAR(self->shortcuts);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef stay_methods[] = {
    {"__enter__", (PyCFunction)stay_enter, METH_NOARGS, "Put everything in place, if nobody else stays."},
    {"__exit__", (PyCFunction)stay_exit, METH_VARARGS, "Put everything back, if nobody else stays."},
    {NULL},
};
static PyTypeObject StayType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.torch_state._inside.Stay",
    .tp_doc = "Stay(places, shortcuts): a context in which methods are replaced; with shortcuts, which are entries of "
              "dicts, no garbage is collected.",
    .tp_basicsize = sizeof(Stay),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)stay_init,
    .tp_dealloc = (destructor)stay_dealloc,
    .tp_methods = stay_methods,
};

/* ---- Made: for contexts of torch, in C, that act as soon as the object is made: a Made makes it when it is entered */

typedef struct {
    PyObject_HEAD
    PyObject *make, *args;
    PyObject *made; /* NULL unless entered */
} Made;

static int made_init(Made *self, PyObject *args, PyObject *keywords) {
    if (PyTuple_GET_SIZE(args) < 1 || self->make != NULL) {
        PyErr_SetString(PyExc_TypeError, "Made takes a class and its arguments");
        return -1;
    }
    self->make = Py_NewRef(PyTuple_GET_ITEM(args, 0));
    self->args = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
    return self->args == NULL ? -1 : 0;
}

static PyObject *made_enter(Made *self, PyObject *nothing) {
    if (self->args == NULL || self->made != NULL) return PyErr_Format(PyExc_RuntimeError, "it is entered once");
    PyObject *made = PyObject_Call(self->make, self->args, NULL);
    PyObject *done = made == NULL ? NULL : PyObject_CallMethodNoArgs(made, enter_name);
    if (done == NULL) {
        Py_XDECREF(made);
        return NULL;
    }
    self->made = made;
    Py_DECREF(done);
    Py_RETURN_NONE;
}

static PyObject *made_exit(Made *self, PyObject *error) {
    PyObject *made = self->made;
    if (made == NULL) Py_RETURN_NONE;
    self->made = NULL;
    PyObject *done = PyObject_CallMethodObjArgs(made, exit_name, Py_None, Py_None, Py_None, NULL);
    Py_DECREF(made);
    if (done == NULL) return NULL;
    Py_DECREF(done);
    Py_RETURN_NONE;
}

static void made_dealloc(Made *self) {
    Py_CLEAR(self->made);
    Py_CLEAR(self->make);
    Py_CLEAR(self->args);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef made_methods[] = {
    {"__enter__", (PyCFunction)made_enter, METH_NOARGS, "Make the context and enter it."},
    {"__exit__", (PyCFunction)made_exit, METH_VARARGS, "Leave it."},
    {NULL},
};
static PyTypeObject MadeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.torch_state._inside.Made",
    .tp_doc = "Made(make, ...): a context of C that acts as soon as it is made; it is made when this one is entered.",
    .tp_basicsize = sizeof(Made),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)made_init,
    .tp_dealloc = (destructor)made_dealloc,
    .tp_methods = made_methods,
};

/* ---- Scope: gives a context variable another value for a while; for `with` statements in users' code */

typedef struct {
    PyObject_HEAD
    PyObject *variable, *begin, *given;
    PyObject *value, *token; /* NULL unless entered */
} Scope;

static int scope_init(Scope *self, PyObject *args, PyObject *keywords) {
    PyObject *variable, *begin, *given;
    if (!PyArg_ParseTuple(args, "O!OO", &PyContextVar_Type, &variable, &begin, &given)) return -1;
    Py_XSETREF(self->variable, Py_NewRef(variable));
    Py_XSETREF(self->begin, Py_NewRef(begin));
    Py_XSETREF(self->given, Py_NewRef(given));
    return 0;
}

static PyObject *scope_enter(Scope *self, PyObject *nothing) {
    if (self->begin == NULL || self->token != NULL) return PyErr_Format(PyExc_RuntimeError, "a scope begins once");
    PyObject *value = PyObject_CallNoArgs(self->begin);
    if (value == NULL) return NULL;
    Py_XSETREF(self->value, value);
    self->token = PyContextVar_Set(self->variable, value);
    return self->token == NULL ? NULL : Py_NewRef(self->given);
}

static PyObject *scope_exit(Scope *self, PyObject *args) {
    PyObject *token = self->token, *value = self->value;
    if (token == NULL) Py_RETURN_NONE;
    self->token = self->value = NULL;
    int failed = PyContextVar_Reset(self->variable, token) < 0;
    Py_DECREF(token);
    int is_error = PyTuple_GET_SIZE(args) > 0 && PyTuple_GET_ITEM(args, 0) != Py_None;
    PyObject *done = failed ? NULL : is_error ? Py_NewRef(Py_None) : PyObject_CallMethod(value, "end", NULL);
    Py_DECREF(value);
    if (done == NULL) return NULL;
    Py_DECREF(done);
    Py_RETURN_NONE;
}

static int scope_traverse(Scope *self, visitproc visit, void *arg) {
    Py_VISIT(self->variable);
    Py_VISIT(self->begin);
    Py_VISIT(self->given);
    Py_VISIT(self->value);
    Py_VISIT(self->token);
    return 0;
}

static int scope_clear(Scope *self) {
    Py_CLEAR(self->variable);
    Py_CLEAR(self->begin);
    Py_CLEAR(self->given);
    Py_CLEAR(self->value);
    Py_CLEAR(self->token);
    return 0;
}

static void scope_dealloc(Scope *self) {
    PyObject_GC_UnTrack(self);
    scope_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef scope_methods[] = {
    {"__enter__", (PyCFunction)scope_enter, METH_NOARGS, "Let the variable have the value that `begin()` gives."},
    {"__exit__", (PyCFunction)scope_exit, METH_VARARGS, "Let it have its former one, and call `end` of the value."},
    {NULL},
};
static PyTypeObject ScopeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.torch_state._inside.Scope",
    .tp_doc = "Scope(variable, begin, given): a context, of which `as` gives what is given, in which a context variable "
              "has another value. If no error ends it, `end()` of the value is called.",
    .tp_basicsize = sizeof(Scope),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)scope_init,
    .tp_traverse = (traverseproc)scope_traverse,
    .tp_clear = (inquiry)scope_clear,
    .tp_dealloc = (destructor)scope_dealloc,
    .tp_methods = scope_methods,
};

/* ---- the module */

static PyMethodDef functions[] = {
    {"inside", (PyCFunction)(void (*)(void))inside, METH_FASTCALL | METH_KEYWORDS,
     "inside(contexts, function, ...): what the function gives, called inside of contexts."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_inside",
    .m_doc = "Changes for a while that are taken back whatever interrupts, in C.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__inside(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    enter_name = PyUnicode_InternFromString("__enter__");
    exit_name = PyUnicode_InternFromString("__exit__");
    if (enter_name == NULL || exit_name == NULL || PyModule_AddType(module, &StayType) < 0 ||
        PyModule_AddType(module, &MadeType) < 0 || PyModule_AddType(module, &ScopeType) < 0)
        Py_CLEAR(module);
    return module;
}
