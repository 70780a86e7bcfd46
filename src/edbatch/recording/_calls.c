/* The hot path of recording: calls of cells that are like earlier ones.

A recording is a run of the user's function on lazy values, which stand for tensors. Calls of cells (modules that are
marked as a unit, or torch's own) become its nodes. A cell is mostly called in few ways: with values of the same kinds
(shape, dtype, device), and numbers in the same places. This is what the key of a call says. `interception.py` teaches a
recording the keys that occur (`KnownCalls.learn`). `ModuleCall` takes the place of `nn.Module.__call__` while somebody
records: it compares the arguments of a call with the keys of its module, and where one fits it adds the node and makes
its outputs. Any other call goes on to Python. Without a C compiler all calls do, see `fast_cells.py`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

enum { MOST_PARTS = 64, MOST_OPEN = 1024, NUMBERED = 256, PLACES = 4, MOST_SIGNATURES = 4, REF_BITS = 32, NO = -1, OTHER = -1, ERROR = -2 };

/* ---- Numbers: a growing array of 64-bit integers, which is read as a buffer */

typedef struct {
    PyObject_HEAD
    long long *data;
    Py_ssize_t size, room, exports;
} Numbers;

static int numbers_push(Numbers *self, const long long *values, Py_ssize_t count) {
    if (self->exports > 0) {
        PyErr_SetString(PyExc_BufferError, "numbers that are being read cannot grow");
        return -1;
    }
    if (self->size + count > self->room) {
        Py_ssize_t room = 2 * (self->size + count) + 64;
        long long *data = PyMem_Realloc(self->data, room * sizeof(long long));
        if (data == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->data = data;
        self->room = room;
    }
    memcpy(self->data + self->size, values, count * sizeof(long long));
    self->size += count;
    return 0;
}

static PyObject *numbers_append(Numbers *self, PyObject *value) {
    long long number = PyLong_AsLongLong(value);
    if ((number == -1 && PyErr_Occurred()) || numbers_push(self, &number, 1) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *numbers_extend(Numbers *self, PyObject *values) {
    PyObject *list = PySequence_Fast(values, "a sequence of numbers is needed");
    if (list == NULL) return NULL;
    Py_ssize_t size = self->size;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); i++) {
        PyObject *done = numbers_append(self, PySequence_Fast_GET_ITEM(list, i));
        if (done == NULL) {
            self->size = size; /* add all of them, or none */
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(done);
    }
    Py_DECREF(list);
    Py_RETURN_NONE;
}

static Py_ssize_t numbers_length(Numbers *self) { return self->size; }

static PyObject *numbers_item(Numbers *self, Py_ssize_t i) {
    if (i < 0 || i >= self->size) return PyErr_Format(PyExc_IndexError, "there are %zd numbers", self->size);
    return PyLong_FromLongLong(self->data[i]);
}

static int numbers_get_buffer(Numbers *self, Py_buffer *view, int flags) {
    static long long nothing;
    void *data = self->data == NULL ? &nothing : self->data;
    if (PyBuffer_FillInfo(view, (PyObject *)self, data, self->size * sizeof(long long), 0, flags) < 0) return -1;
    self->exports++;
    return 0;
}

static void numbers_release_buffer(Numbers *self, Py_buffer *view) { self->exports--; }

static void numbers_dealloc(Numbers *self) {
    PyMem_Free(self->data);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef numbers_methods[] = {
    {"append", (PyCFunction)numbers_append, METH_O, "Add one number."},
    {"extend", (PyCFunction)numbers_extend, METH_O, "Add a sequence of numbers."},
    {NULL},
};
static PySequenceMethods numbers_sequence = {
    .sq_length = (lenfunc)numbers_length,
    .sq_item = (ssizeargfunc)numbers_item,
};
static PyBufferProcs numbers_buffer = {
    (getbufferproc)numbers_get_buffer,
    (releasebufferproc)numbers_release_buffer,
};
static PyTypeObject NumbersType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.recording._calls.Numbers",
    .tp_doc = "64-bit integers that grow in number; np.frombuffer reads them.",
    .tp_basicsize = sizeof(Numbers),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)numbers_dealloc,
    .tp_methods = numbers_methods,
    .tp_as_sequence = &numbers_sequence,
    .tp_as_buffer = &numbers_buffer,
};

/* ---- Value: the base class of lazy values

isinstance(value, torch.Tensor) is true of lazy values. Some code of torch in C asks just that, without looking for
__torch_function__ first, and then reads the pointer to a C++ tensor where torch's own objects have it: right behind the
object's head, or after a flag, depending on the version. In a lazy value it finds there the C++ object for "no tensor",
as for an argument that was not given, and raises an error.

All values that are alive are in a list, so that what was computed for those that outlive their call can be handed over,
and that a write in place is known to be seen by nobody else. */

typedef struct Value {
    PyObject_HEAD
    void *tensor[2];
    struct Value *next, **link; /* the next value in the list, and the pointer in the list that leads here */
} Value;

static void *no_tensor; /* the address of c10::UndefinedTensorImpl's only object */
static Value *values;   /* the values that are alive, the youngest first */

static void fill_value(PyObject *object) {
    Value *value = (Value *)object;
    value->tensor[0] = value->tensor[1] = no_tensor;
    if ((value->next = values) != NULL) values->link = &value->next;
    value->link = &values;
    values = value;
}

static void value_dealloc(PyObject *object) {
    Value *value = (Value *)object;
    if (value->next != NULL) value->next->link = value->link;
    if (value->link != NULL) *value->link = value->next;
    Py_TYPE(object)->tp_free(object);
}

static PyObject *value_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self != NULL) fill_value(self);
    return self;
}

static PyNumberMethods value_numbers; /* operators of lazy values: see _operations.h */
static PyMappingMethods value_mapping;

static PyTypeObject ValueType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.recording._calls.Value",
    .tp_doc = "The base of lazy values, which C code may take for tensors: for one that is not given.",
    .tp_basicsize = sizeof(Value),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = value_new,
    .tp_dealloc = value_dealloc,
    .tp_as_number = &value_numbers,
    .tp_as_mapping = &value_mapping,
};

static PyObject *living(PyObject *module, PyObject *nothing) {
    PyObject *list = PyList_New(0);
    for (Value *value = values; list != NULL && value != NULL; value = value->next)
        if (Py_REFCNT(value) > 0 && PyList_Append(list, (PyObject *)value) < 0) Py_CLEAR(list);
    return list;
}

static PyObject *set_no_tensor(PyObject *module, PyObject *address) {
    no_tensor = PyLong_AsVoidPtr(address);
    return no_tensor == NULL && PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* ---- KnownCalls: the signatures of calls that one recording has seen */

typedef struct Signature {
    PyObject *key;    /* (module, part, ...): a Kind, `int` or `float` for each part; `tuple` and n before n parts */
    PyObject *entry;  /* the Entry of the node's type */
    PyObject *kinds;  /* the kinds of its outputs, if they are one value or a plain tuple of values; else NULL */
    long long type;   /* the number of its type */
    int is_marked;    /* the user has marked the cell */
} Signature;

typedef struct {
    Py_ssize_t count;
    Signature signatures[MOST_SIGNATURES];
} Signatures; /* of one module; the garbage collector does not see their references to the recorder: see forget */

typedef struct {
    PyObject *frame; /* of a function that has not returned, or of one that has recorded the last node */
    PyObject *instructions; /* bytes */
    long long begin, code;
} Open;

typedef struct {
    PyObject *code, *instructions;
    long long number;
} Numbered;

typedef struct {
    PyObject_HEAD
    PyTypeObject *lazy;
    Py_ssize_t kind, ref; /* offsets of these two slots in a lazy value */
    PyObject *as_value;   /* as_value(recorder, part): a pending sum or a tensor as a plain lazy value */
    PyObject *outside;    /* id(tensor) -> the lazy value of a tensor that was used before */
    Numbers *types, *args;
    PyObject *modules; /* module -> capsule of Signatures; None for a module that is no cell */
    PyObject *codes;   /* code -> its number, OTHER if it is not the user's; NULL: nobody asks which function records */
    PyObject *own;     /* the folders whose functions are not the user's: a tuple of prefixes of file names */
    Numbered numbered[NUMBERED]; /* the same for some codes, by their addresses: see code_of */
    Numbers *sites;    /* of each node the instruction that has recorded it: (code << 32) + offset, or OTHER */
    Numbers *spans;    /* begin, end, code: the nodes that one call of a function of the user's has recorded */
    Open open[MOST_OPEN];
    Py_ssize_t depth, end; /* end: one more than the last node whose function was noted */
    int is_lost;           /* calls are nested too deeply */
    PyObject *base;        /* the frame in which the recording began */
    PyObject *shared;                /* id(tensor) -> a tensor that all examples share */
    PyObject *entries;               /* the entries of all types, in their order */
    PyObject *note_part;             /* is told of the parts that are taken of values, see `writes.py`; NULL: nobody asks */
    PyObject *at_once;               /* functions that run at once on plain arguments -> where new tensors are noted, or None */
    PyObject *overwritten;           /* plain tensors that stand for values, by identity */
    PyObject *context;               /* the modes that calls are recorded in; NULL while nothing can be recorded */
    int is_usual;                    /* whether 0 + x is x, if a node gives x */
    Py_ssize_t num_modes;            /* how many modes see torch's functions if the user adds none */
    struct Operation **operations;   /* known calls of torch functions, operators and methods: see _operations.h */
    size_t room, num_operations;
} KnownCalls;

static PyTypeObject KnownCallsType;
static void forget_operations(KnownCalls *self);

#define SLOT(value, offset) (*(PyObject **)((char *)(value) + (offset)))

static Py_ssize_t offset_of(PyTypeObject *type, const char *name) {
    PyObject *member = PyObject_GetAttrString((PyObject *)type, name);
    if (member == NULL) return -1;
    Py_ssize_t offset = -1;
    if (Py_IS_TYPE(member, &PyMemberDescr_Type))
        offset = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%s is not a slot", name);
    Py_DECREF(member);
    return offset;
}

static int known_init(KnownCalls *self, PyObject *args, PyObject *keywords) {
    PyTypeObject *lazy;
    PyObject *as_value, *outside, *types, *numbers, *shared, *entries;
    if (!PyArg_ParseTuple(args, "O!OO!O!O!O!O!", &PyType_Type, &lazy, &as_value, &PyDict_Type, &outside,
                          &NumbersType, &types, &NumbersType, &numbers, &PyDict_Type, &shared, &PyList_Type, &entries))
        return -1;
    if (!PyType_IsSubtype(lazy, &ValueType)) {
        PyErr_SetString(PyExc_TypeError, "lazy values are of a class derived from Value");
        return -1;
    }
    if ((self->kind = offset_of(lazy, "kind")) < 0 || (self->ref = offset_of(lazy, "ref")) < 0) return -1;
    Py_XSETREF(self->lazy, (PyTypeObject *)Py_NewRef(lazy));
    Py_XSETREF(self->as_value, Py_NewRef(as_value));
    Py_XSETREF(self->outside, Py_NewRef(outside));
    Py_XSETREF(self->types, (Numbers *)Py_NewRef(types));
    Py_XSETREF(self->args, (Numbers *)Py_NewRef(numbers));
    Py_XSETREF(self->shared, Py_NewRef(shared));
    Py_XSETREF(self->entries, Py_NewRef(entries));
    Py_XSETREF(self->modules, PyDict_New());
    return self->modules == NULL ? -1 : 0;
}

/* ---- Spans: which nodes a call of one of the user's functions has recorded

Before a node is added, the Python frame that adds it is compared with the frames of the nodes before. Frames on the
stack `open` that are not among its callers any more have returned: what they have recorded is a span. Nodes of marked
cells are not looked at, because these are never a part of something larger. */

/* The number of a code: OTHER for functions of torch and of this package, ERROR for an error. */
static long long look_up_code(KnownCalls *self, PyCodeObject *code) {
    PyObject *known = PyDict_GetItemWithError(self->codes, (PyObject *)code);
    if (known != NULL) return PyLong_AsLongLong(known);
    if (PyErr_Occurred()) return ERROR;
    Py_ssize_t is_own = 0;
    for (Py_ssize_t i = 0; is_own == 0 && i < PyTuple_GET_SIZE(self->own); i++)
        is_own = PyUnicode_Tailmatch(code->co_filename, PyTuple_GET_ITEM(self->own, i), 0, PY_SSIZE_T_MAX, -1);
    if (is_own < 0) return ERROR;
    PyObject *number = PyLong_FromLongLong(is_own ? OTHER : (long long)PyDict_GET_SIZE(self->codes));
    int failed = number == NULL || PyDict_SetItem(self->codes, (PyObject *)code, number) < 0;
    long long found = failed ? ERROR : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    return found;
}

/* What is known of the code of a frame, until the next call; NULL for an error. A code is looked for by its address, in
a few places, so that functions which call each other do not drive each other out: to hash a code takes longer than all
else that is done for a call. */
static Numbered *code_of(KnownCalls *self, PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    Py_DECREF(code); /* the frame holds it */
    Numbered *places = &self->numbered[((size_t)code >> 5) * PLACES % NUMBERED];
    for (int i = 0; i < PLACES; i++)
        if (places[i].code == (PyObject *)code) return &places[i];
    long long number = look_up_code(self, code);
    PyObject *instructions = number == ERROR ? NULL : number >= 0 ? PyCode_GetCode(code) : Py_NewRef(Py_None);
    if (instructions == NULL) return NULL;
    Numbered oldest = places[PLACES - 1];
    memmove(places + 1, places, (PLACES - 1) * sizeof(Numbered));
    places[0] = (Numbered){Py_NewRef(code), instructions, number};
    Py_XDECREF(oldest.code);
    Py_XDECREF(oldest.instructions);
    return places;
}

/* The offset of the instruction that a frame executes. The interpreter may stand on the entries of a cache behind it,
which are zeros; where exactly depends on how often it has been executed. */
static long long offset_of_instruction(Open *top) {
    const char *instructions = PyBytes_AS_STRING(top->instructions);
    long long at = PyFrame_GetLasti((PyFrameObject *)top->frame);
    while (at > 0 && instructions[at] == 0) at -= 2;
    return at;
}

/* Close the spans of all frames above a depth. */
static int close_spans(KnownCalls *self, Py_ssize_t depth) {
    while (self->depth > depth) {
        Open *top = &self->open[self->depth - 1];
        long long span[3] = {top->begin, self->end, top->code};
        if (span[1] - span[0] > 1 && numbers_push(self->spans, span, 3) < 0) return -1;
        self->depth--;
        Py_CLEAR(top->frame);
        Py_CLEAR(top->instructions);
    }
    return 0;
}

/* Let the stack `open` be the user's functions that run now, up to the frame that is given. */
static int note_calls(KnownCalls *self, PyFrameObject *frame) {
    Open new[MOST_OPEN];
    Py_ssize_t count = 0, depth = 0;
    int failed = 0;
    frame = (PyFrameObject *)Py_NewRef(frame);
    while (frame != NULL && !failed) {
        Numbered *known = code_of(self, frame);
        failed = known == NULL;
        if (known != NULL && known->number >= 0) {
            for (depth = self->depth; depth > 0 && self->open[depth - 1].frame != (PyObject *)frame; depth--) continue;
            if (depth > 0) break;
            self->is_lost |= count == MOST_OPEN;
            if (!self->is_lost)
                new[count++] = (Open){Py_NewRef(frame), Py_NewRef(known->instructions), self->types->size, known->number};
        }
        PyFrameObject *caller = (PyObject *)frame == self->base ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    Py_XDECREF(frame);
    failed = failed || close_spans(self, depth) < 0;
    self->is_lost |= self->depth + count > MOST_OPEN;
    while (count > 0) {
        Open *callee = &new[--count];
        if (!failed && !self->is_lost) {
            self->open[self->depth++] = *callee;
        } else {
            Py_DECREF(callee->frame);
            Py_DECREF(callee->instructions);
        }
    }
    return failed ? -1 : 0;
}

/* Note which function is about to add a node. */
static int enter(KnownCalls *self) {
    if (self->codes == NULL || self->is_lost) return 0;
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL) return 0;
    int is_same = self->depth > 0 && self->open[self->depth - 1].frame == (PyObject *)frame;
    if (!is_same && note_calls(self, frame) < 0) return -1;
    if (self->depth == 0 || self->is_lost) return 0;
    Open *top = &self->open[self->depth - 1];
    long long site = (top->code << REF_BITS) + offset_of_instruction(top), other = OTHER;
    while (self->sites->size < self->types->size)
        if (numbers_push(self->sites, &other, 1) < 0) return -1;
    self->sites->size = self->types->size; /* an error may have come between a note and its node */
    self->end = self->types->size + 1;
    return numbers_push(self->sites, &site, 1);
}

static PyObject *known_enter(KnownCalls *self, PyObject *nothing) {
    return enter(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* The present frame is where a recording begins: frames around it do not count. */
static PyObject *known_begin(KnownCalls *self, PyObject *args) {
    PyObject *codes, *own, *sites, *spans;
    if (!PyArg_ParseTuple(args, "O!O!O!O!", &PyDict_Type, &codes, &PyTuple_Type, &own, &NumbersType, &sites,
                          &NumbersType, &spans))
        return NULL;
    Py_XSETREF(self->codes, Py_NewRef(codes));
    Py_XSETREF(self->own, Py_NewRef(own));
    Py_XSETREF(self->sites, (Numbers *)Py_NewRef(sites));
    Py_XSETREF(self->spans, (Numbers *)Py_NewRef(spans));
    Py_XSETREF(self->base, Py_XNewRef(PyEval_GetFrame()));
    Py_RETURN_NONE;
}

static PyObject *known_end(KnownCalls *self, PyObject *nothing) {
    int failed = close_spans(self, 0) < 0;
    Py_CLEAR(self->base);
    Py_CLEAR(self->codes); /* nothing is noted any more */
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *one_name;

static Signatures *signatures_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, NULL); }

static void free_signatures(PyObject *capsule) {
    Signatures *known = signatures_of(capsule);
    for (Py_ssize_t i = 0; i < known->count; i++) {
        Py_DECREF(known->signatures[i].key);
        Py_DECREF(known->signatures[i].entry);
        Py_XDECREF(known->signatures[i].kinds);
    }
    PyMem_Free(known);
}

/* Whether an object is equal only to itself, so that a dict finds it by identity. */
static int is_itself_alone(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    return type->tp_hash == PyBaseObject_Type.tp_hash && type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

static Signatures *signatures_to_fill(KnownCalls *self, PyObject *module) {
    PyObject *capsule = PyDict_GetItemWithError(self->modules, module);
    if (capsule == NULL && PyErr_Occurred()) return NULL;
    if (capsule != NULL && capsule != Py_None) return signatures_of(capsule);
    Signatures *known = PyMem_Calloc(1, sizeof(Signatures));
    if (known == NULL) return (Signatures *)PyErr_NoMemory();
    capsule = PyCapsule_New(known, NULL, free_signatures);
    if (capsule == NULL) {
        PyMem_Free(known);
        return NULL;
    }
    int failed = PyDict_SetItem(self->modules, module, capsule);
    Py_DECREF(capsule);
    return failed ? NULL : known;
}

static PyObject *known_learn(KnownCalls *self, PyObject *args) {
    PyObject *key, *entry, *kinds;
    long long type;
    int is_marked = 0;
    if (!PyArg_ParseTuple(args, "O!OLO|p", &PyTuple_Type, &key, &entry, &type, &kinds, &is_marked)) return NULL;
    if (PyTuple_GET_SIZE(key) < 1 || PyTuple_GET_SIZE(key) > MOST_PARTS || self->modules == NULL) Py_RETURN_NONE;
    if (!is_itself_alone(PyTuple_GET_ITEM(key, 0))) Py_RETURN_NONE;
    Signatures *known = signatures_to_fill(self, PyTuple_GET_ITEM(key, 0));
    if (known == NULL) return NULL;
    for (Py_ssize_t i = 0; i < known->count; i++) {
        int is_same = PyObject_RichCompareBool(known->signatures[i].key, key, Py_EQ);
        if (is_same != 0) return is_same < 0 ? NULL : Py_NewRef(Py_None);
    }
    if (known->count == MOST_SIGNATURES) Py_RETURN_NONE;
    Signature *new = &known->signatures[known->count++];
    new->key = Py_NewRef(key);
    new->entry = Py_NewRef(entry);
    new->kinds = PyTuple_Check(kinds) ? Py_NewRef(kinds) : NULL;
    new->type = type;
    new->is_marked = is_marked;
    Py_RETURN_NONE;
}

static PyObject *known_pass_by(KnownCalls *self, PyObject *module) {
    if (self->modules == NULL || !is_itself_alone(module)) Py_RETURN_NONE;
    return PyDict_SetItem(self->modules, module, Py_None) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *known_forget(KnownCalls *self, PyObject *nothing) {
    if (self->modules != NULL) PyDict_Clear(self->modules);
    Py_RETURN_NONE;
}

/* Take x from a pending sum (not recorded yet) of one term, 0 + x. Gives 1 if x is as the key says, 0 if it is anything
else, -1 for an error. */
static int take_only_term(KnownCalls *self, PyObject *part, PyObject *value, long long *number) {
    PyObject *sum = SLOT(value, self->ref); /* (terms, count, context) */
    if (SLOT(value, self->kind) == NULL || PyTuple_GET_SIZE(sum) != 3 || !PyList_CheckExact(PyTuple_GET_ITEM(sum, 0))) return 0;
    PyObject *terms = PyTuple_GET_ITEM(sum, 0);
    if (PyLong_AsLongLong(PyTuple_GET_ITEM(sum, 1)) != 1 || PyList_GET_SIZE(terms) < 1) return 0;
    PyObject *kind = PyObject_GetAttr(SLOT(value, self->kind), one_name);
    if (kind == NULL) return -1;
    int is_alike = kind == part;
    Py_DECREF(kind);
    if (is_alike) *number = PyLong_AsLongLong(PyList_GET_ITEM(terms, 0));
    return is_alike;
}

/* Take a part of an argument as a number: the reference of a value, an int, or the bits of a float. Gives 1 if it is as
the key says, 0 if it is not, -1 for an error. */
static int take(KnownCalls *self, PyObject *recorder, PyObject *part, PyObject *value, long long *number) {
    if (part == (PyObject *)&PyLong_Type) {
        if (!PyLong_CheckExact(value)) return 0;
        int overflow;
        *number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow == 0;
    }
    if (part == (PyObject *)&PyFloat_Type) {
        if (!PyFloat_CheckExact(value)) return 0;
        double bits = PyFloat_AS_DOUBLE(value);
        memcpy(number, &bits, sizeof bits);
        return 1;
    }
    if (Py_IS_TYPE(value, self->lazy)) {
        if (SLOT(value, self->kind) != part || SLOT(value, self->ref) == NULL) return 0;
        *number = PyLong_AsLongLong(SLOT(value, self->ref));
        return 1;
    }
    if (Py_TYPE(value)->tp_base == self->lazy && SLOT(value, self->ref) != NULL &&
        PyTuple_CheckExact(SLOT(value, self->ref))) {
        int taken = take_only_term(self, part, value, number);
        if (taken != 0) return taken;
    }
    PyObject *identity = PyLong_FromVoidPtr(value);
    if (identity == NULL) return -1;
    PyObject *made = Py_XNewRef(PyDict_GetItemWithError(self->outside, identity));
    Py_DECREF(identity);
    if (made == NULL && !PyErr_Occurred())
        made = PyObject_CallFunctionObjArgs(self->as_value, recorder, value, NULL);
    if (made == NULL) return -1;
    int taken = Py_IS_TYPE(made, self->lazy) && take(self, recorder, part, made, number);
    Py_DECREF(made);
    return taken;
}

/* Compare arguments with a key, part by part. Gives how many numbers they became, NO if they do not fit, or ERROR. */
static Py_ssize_t follow(KnownCalls *self, PyObject *recorder, PyObject *key, PyObject *const *args, Py_ssize_t count,
                         long long *numbers) {
    Py_ssize_t at = 1, end = PyTuple_GET_SIZE(key), given = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (at == end) return NO;
        PyObject *const *parts = &args[i];
        Py_ssize_t length = 1;
        if (PyTuple_GET_ITEM(key, at) == (PyObject *)&PyTuple_Type) {
            length = PyLong_AsSsize_t(PyTuple_GET_ITEM(key, at + 1));
            if (!PyTuple_CheckExact(args[i]) || PyTuple_GET_SIZE(args[i]) != length) return NO;
            parts = ((PyTupleObject *)args[i])->ob_item;
            at += 2;
        }
        for (Py_ssize_t j = 0; j < length; j++) {
            int taken = take(self, recorder, PyTuple_GET_ITEM(key, at++), parts[j], &numbers[given++]);
            if (taken != 1) return taken == 0 ? NO : ERROR;
        }
    }
    return at == end ? given : NO;
}

static PyObject *make_lazy(KnownCalls *self, PyObject *kind, long long ref) {
    PyObject *value = self->lazy->tp_alloc(self->lazy, 0);
    if (value == NULL) return NULL;
    fill_value(value);
    SLOT(value, self->kind) = Py_NewRef(kind);
    if ((SLOT(value, self->ref) = PyLong_FromLongLong(ref)) == NULL) Py_CLEAR(value);
    return value;
}

/* The outputs of a node: one value or a plain tuple of values. */
static PyObject *make_outputs(KnownCalls *self, PyObject *kinds, long long node) {
    Py_ssize_t outputs = PyTuple_GET_SIZE(kinds);
    if (outputs == 1) return make_lazy(self, PyTuple_GET_ITEM(kinds, 0), node);
    PyObject *result = PyTuple_New(outputs);
    for (Py_ssize_t i = 0; result != NULL && i < outputs; i++) {
        PyObject *value = make_lazy(self, PyTuple_GET_ITEM(kinds, i), node + (i << REF_BITS));
        if (value == NULL) Py_CLEAR(result);
        else PyTuple_SET_ITEM(result, i, value);
    }
    return result;
}

static PyObject *add_node(KnownCalls *self, Signature *call, const long long *numbers, Py_ssize_t count) {
    if (!call->is_marked && enter(self) < 0) return NULL;
    long long node = self->types->size;
    if (numbers_push(self->args, numbers, count) < 0) return NULL;
    if (numbers_push(self->types, &call->type, 1) < 0) {
        self->args->size -= count;
        return NULL;
    }
    return call->kinds == NULL ? PyObject_CallMethod(call->entry, "outputs", "L", node)
                               : make_outputs(self, call->kinds, node);
}

static PyObject *call_impl_name;

/* The result of a call of args[0], a module; NULL without an error if no known signature fits. */
static PyObject *known_call(KnownCalls *self, PyObject *recorder, PyObject *const *args, Py_ssize_t count) {
    long long numbers[MOST_PARTS];
    if (self->modules == NULL || !is_itself_alone(args[0])) return NULL;
    PyObject *capsule = PyDict_GetItemWithError(self->modules, args[0]);
    if (capsule == NULL) return NULL;
    if (capsule == Py_None) return PyObject_VectorcallMethod(call_impl_name, args, count, NULL);
    Py_INCREF(capsule); /* as_value runs Python code, which may call forget */
    Signatures *known = signatures_of(capsule);
    PyObject *result = NULL;
    for (Py_ssize_t i = 0, given = NO; given == NO && i < known->count; i++) {
        Signature *call = &known->signatures[i];
        given = follow(self, recorder, call->key, args + 1, count - 1, numbers);
        if (given >= 0) result = add_node(self, call, numbers, given);
    }
    Py_DECREF(capsule);
    return result;
}

static PyObject *spec_name, *shape_name;

#include "_operations.h"

/* within(context, is_usual): the modes that calls are recorded in from now on; None: nothing is recorded. */
static PyObject *known_within(KnownCalls *self, PyObject *args) {
    PyObject *context;
    int is_usual;
    if (!PyArg_ParseTuple(args, "Op", &context, &is_usual)) return NULL;
    Py_XSETREF(self->context, context == Py_None ? NULL : Py_NewRef(context));
    self->is_usual = is_usual;
    Py_RETURN_NONE;
}

static PyObject *known_close(KnownCalls *self, PyObject *nothing) {
    Py_CLEAR(self->context);
    Py_CLEAR(self->note_part);
    Py_CLEAR(self->at_once);
    Py_CLEAR(self->overwritten);
    forget_operations(self);
    return known_forget(self, nothing);
}

static int known_traverse(KnownCalls *self, visitproc visit, void *arg) {
    Py_VISIT(self->lazy);
    Py_VISIT(self->as_value);
    Py_VISIT(self->outside);
    Py_VISIT(self->modules);
    Py_VISIT(self->own);
    Py_VISIT(self->codes);
    Py_VISIT(self->base);
    Py_VISIT(self->shared);
    Py_VISIT(self->entries);
    Py_VISIT(self->context);
    Py_VISIT(self->note_part);
    Py_VISIT(self->at_once);
    Py_VISIT(self->overwritten);
    for (size_t i = 0; i < self->room; i++) {
        if (self->operations[i] == NULL) continue;
        Py_VISIT(self->operations[i]->entry);
        Py_VISIT(self->operations[i]->kinds);
        Py_VISIT(self->operations[i]->held);
    }
    for (Py_ssize_t i = 0; i < self->depth; i++) Py_VISIT(self->open[i].frame);
    for (Py_ssize_t i = 0; i < NUMBERED; i++) Py_VISIT(self->numbered[i].code);
    return 0;
}

static int known_clear(KnownCalls *self) {
    Py_CLEAR(self->lazy);
    Py_CLEAR(self->as_value);
    Py_CLEAR(self->outside);
    Py_CLEAR(self->modules);
    Py_CLEAR(self->own);
    Py_CLEAR(self->codes);
    Py_CLEAR(self->base);
    for (; self->depth > 0; self->depth--) {
        Py_CLEAR(self->open[self->depth - 1].frame);
        Py_CLEAR(self->open[self->depth - 1].instructions);
    }
    for (Py_ssize_t i = 0; i < NUMBERED; i++) {
        Py_CLEAR(self->numbered[i].code);
        Py_CLEAR(self->numbered[i].instructions);
    }
    Py_CLEAR(self->shared);
    Py_CLEAR(self->entries);
    Py_CLEAR(self->note_part);
    Py_CLEAR(self->at_once);
    Py_CLEAR(self->overwritten);
    Py_CLEAR(self->context);
    forget_operations(self);
    return 0;
}

static void known_dealloc(KnownCalls *self) {
    PyObject_GC_UnTrack(self);
    known_clear(self);
    Py_CLEAR(self->types);
    Py_CLEAR(self->args);
    Py_CLEAR(self->sites);
    Py_CLEAR(self->spans);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef known_methods[] = {
    {"begin", (PyCFunction)known_begin, METH_VARARGS, "begin(codes, own, sites, spans): note from now on which functions record."},
    {"enter", (PyCFunction)known_enter, METH_NOARGS, "A node is about to be added: note which function does so."},
    {"end", (PyCFunction)known_end, METH_NOARGS, "All functions have returned."},
    {"learn", (PyCFunction)known_learn, METH_VARARGS, "learn(key, entry, type, kinds, is_marked=False), if there is room for it."},
    {"pass_by", (PyCFunction)known_pass_by, METH_O, "A module is no cell: its calls are torch's own."},
    {"forget", (PyCFunction)known_forget, METH_NOARGS, "What is known of modules holds no more."},
    {"record", (PyCFunction)(void (*)(void))known_record, METH_FASTCALL, "record(function, args, keywords, otherwise)"},
    {"within", (PyCFunction)known_within, METH_VARARGS, "within(context, is_usual): the modes around further calls."},
    {"close", (PyCFunction)known_close, METH_NOARGS, "Nothing more is recorded, and nothing is known any more."},
    {NULL},
};
static PyMemberDef known_members[] = {
    {"note_part", T_OBJECT, offsetof(KnownCalls, note_part), 0, "Called with (part, value, the value's reference, index)."},
    {"at_once", T_OBJECT, offsetof(KnownCalls, at_once), 0, "Functions that run at once on plain arguments."},
    {"overwritten", T_OBJECT, offsetof(KnownCalls, overwritten), 0, "Plain tensors that stand for values, by identity."},
    {"num_modes", T_PYSSIZET, offsetof(KnownCalls, num_modes), 0, "How many modes see torch's functions if the user adds none."},
    {NULL},
};
static PyTypeObject KnownCallsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.recording._calls.KnownCalls",
    .tp_doc = "KnownCalls(lazy, as_value, outside, types, args, shared, entries): the calls that one recording knows.",
    .tp_basicsize = sizeof(KnownCalls),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)known_init,
    .tp_traverse = (traverseproc)known_traverse,
    .tp_clear = (inquiry)known_clear,
    .tp_dealloc = (destructor)known_dealloc,
    .tp_methods = known_methods,
    .tp_members = known_members,
};

/* ---- ModuleCall: takes the place of nn.Module.__call__ while somebody records */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *active;    /* the context variable of this thread's recorder */
    PyObject *otherwise; /* the function for all calls that are not known */
} ModuleCall;

static PyObject *known_calls_name;

static PyObject *module_call(ModuleCall *self, PyObject *const *args, size_t flags, PyObject *keywords) {
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (count > 0 && (keywords == NULL || PyTuple_GET_SIZE(keywords) == 0)) {
        PyObject *recorder;
        if (PyContextVar_Get(self->active, Py_None, &recorder) < 0) return NULL;
        PyObject *result = NULL;
        if (recorder != Py_None) {
            PyObject *known = PyObject_GetAttr(recorder, known_calls_name);
            if (known != NULL && Py_IS_TYPE(known, &KnownCallsType))
                result = known_call((KnownCalls *)known, recorder, args, count);
            Py_XDECREF(known);
        }
        Py_DECREF(recorder);
        if (result != NULL || PyErr_Occurred()) return result;
    }
    return PyObject_Vectorcall(self->otherwise, args, flags, keywords);
}

static PyObject *module_call_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *active, *otherwise;
    if (!PyArg_ParseTuple(args, "O!O", &PyContextVar_Type, &active, &otherwise)) return NULL;
    ModuleCall *self = (ModuleCall *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->active = Py_NewRef(active);
    self->otherwise = Py_NewRef(otherwise);
    self->vectorcall = (vectorcallfunc)module_call;
    return (PyObject *)self;
}

static PyObject *module_call_get(PyObject *self, PyObject *module, PyObject *type) {
    return module == NULL || module == Py_None ? Py_NewRef(self) : PyMethod_New(self, module);
}

static void module_call_dealloc(ModuleCall *self) {
    Py_CLEAR(self->active);
    Py_CLEAR(self->otherwise);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject ModuleCallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.recording._calls.ModuleCall",
    .tp_doc = "ModuleCall(active, otherwise): the method that records known calls; `otherwise` gets all others.",
    .tp_basicsize = sizeof(ModuleCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = module_call_new,
    .tp_dealloc = (destructor)module_call_dealloc,
    .tp_vectorcall_offset = offsetof(ModuleCall, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = module_call_get,
};

/* Whether dicts still hold the very same objects: items[i] has the keys and values that dicts[i] held, in turn. */
static PyObject *same_items(PyObject *module, PyObject *args) {
    PyObject *dicts, *items, *key, *value;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &dicts, &PyList_Type, &items)) return NULL;
    if (PyList_GET_SIZE(dicts) != PyList_GET_SIZE(items)) Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(dicts); i++) {
        PyObject *dict = PyList_GET_ITEM(dicts, i), *held = PyList_GET_ITEM(items, i);
        if (!PyDict_Check(dict) || !PyTuple_Check(held))
            return PyErr_Format(PyExc_TypeError, "same_items takes a list of dicts and one of tuples");
        if (2 * PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(held)) Py_RETURN_FALSE;
        for (Py_ssize_t at = 0, k = 0; PyDict_Next(dict, &at, &key, &value); k += 2)
            if (key != PyTuple_GET_ITEM(held, k) || value != PyTuple_GET_ITEM(held, k + 1)) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

/* ---- the module */

static PyMethodDef functions[] = {
    {"set_no_tensor", set_no_tensor, METH_O, "set_no_tensor(address)"},
    {"living", living, METH_NOARGS, "living(): all values that are alive, the youngest first"},
    {"same_items", same_items, METH_VARARGS, "same_items(dicts, items)"},
    {"set_up", set_up, METH_VARARGS, "set_up(Lazy, PendingSum, Ragged, Kind, Parameter, Tensor, Size, dtype, materialise, count_modes, arithmetic)"},
    {"set_operator", set_operator, METH_VARARGS, "set_operator(name, forward, reflected)"},
    {"named_stack", named_stack, METH_O, "named_stack(original)"},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_calls",
    .m_doc = "Calls of cells that a recording knows, in C.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__calls(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    known_calls_name = PyUnicode_InternFromString("known_calls");
    call_impl_name = PyUnicode_InternFromString("_call_impl");
    one_name = PyUnicode_InternFromString("one");
    spec_name = PyUnicode_InternFromString("spec");
    shape_name = PyUnicode_InternFromString("shape");
    if (one_name == NULL || spec_name == NULL || shape_name == NULL || known_calls_name == NULL || call_impl_name == NULL || PyModule_AddType(module, &NumbersType) < 0 ||
        PyModule_AddType(module, &ValueType) < 0 ||
        PyModule_AddType(module, &MethodType) < 0 || PyModule_AddType(module, &NamedType) < 0 ||
        PyModule_AddType(module, &KnownCallsType) < 0 || PyModule_AddType(module, &ModuleCallType) < 0)
        Py_CLEAR(module);
    return module;
}
