/* Operators, methods and torch functions of lazy values that are like earlier ones. A part of `_calls.c`.

A call is described by *words*: its function, the kinds of the lazy values among its arguments, shared tensors by
identity, and constants. Numbers that are data of the call, and the references of lazy values, are kept apart: they are
what a node gets. A call that is not known takes the long way, in Python. What that recorded is then looked at
(`learn_operation`): if it was one node that got just these numbers, and the result of the call was the node's, then the
words say all that decides its type, and further calls of the same words are recorded here. */

enum { MOST_WORDS = 96, MOST_LATER = 16, MOST_OPERATIONS = 4096 };

/* What a word says if it is no address of an object. Further words follow, as many as the first one implies. */
enum { INT = 1, FLOAT, INT_DATA, FLOAT_DATA, SHARED, OBJECT, TEXT, TUPLE, LIST, SLICE, INDEX, LISTED, KEYWORDS, SUM, STACK };

typedef struct {
    PyTypeObject *lazy, *pending, *ragged, *parameter, *tensor, *size, *dtype, *device;
    PyObject *materialise;   /* materialise(recorder, rows): a stack of any number of values, side by side in memory */
    PyObject *count_modes;   /* how many modes of this thread see torch's functions */
    PyObject *arithmetic;    /* functions whose numbers are data: a set */
    Py_ssize_t kind, ref;    /* offsets of slots: in a lazy value, */
    Py_ssize_t length, elements, whole, context, taken; /* in a stack of any number of values, */
    Py_ssize_t one, pending_kind, rows, recorder, calls;    /* and in a kind */
} Layout;

static Layout at; /* set once, at import; lazy is NULL before */

typedef struct {
    KnownCalls *known;
    Py_ssize_t num_words, num_numbers, num_later, num_held;
    int has_value;  /* whether a lazy value is among the arguments, and not only tensors that nodes have read */
    PyObject *rows; /* the stacks among the arguments are of the same length: one of them */
    int is_listed;  /* whether that is only a list of values */
    long long words[MOST_WORDS], numbers[MOST_PARTS];
    PyObject *later[MOST_LATER]; /* pending sums and stacks, which get a reference if the call is known */
    Py_ssize_t places[MOST_LATER];
    PyObject *held[MOST_WORDS]; /* objects whose addresses are words */
} Call; /* all references are borrowed */

typedef struct Operation {
    long long type;
    PyObject *entry, *kinds, *held; /* kinds: as in a Signature */
    int per_row;                    /* the only output is a row for each row that was read */
    int reads_list;                 /* a stack is read as a list of values, not side by side */
    int reads_length;               /* the length of the stack comes last, as a float */
    Py_ssize_t count;
    long long words[];
} Operation;

/* A torch function, operator or method. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;  /* what the recorder takes it for */
    PyObject *otherwise; /* is called if the call is not known */
    int are_data;        /* numbers among its arguments are data */
    int is_direct;       /* its arguments reach the recorder as they are */
    int is_named;        /* it stands in a namespace of torch: modes see its calls */
    PyObject *weak;      /* weak references to it, which torch keeps of functions */
} Function;

static KnownCalls *known_of(PyObject *value) {
    PyObject *kind = SLOT(value, at.kind);
    PyObject *known = kind == NULL ? NULL : SLOT(kind, at.calls);
    return known != NULL && Py_IS_TYPE(known, &KnownCallsType) ? (KnownCalls *)known : NULL;
}

static int is_value(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    return type == at.lazy || type == at.pending || type == at.ragged;
}

/* What is known by the recorder of the first lazy value among arguments; NULL if there is none. */
static KnownCalls *find_known(PyObject *const *args, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        if (is_value(args[i])) return known_of(args[i]);
        if (!PyTuple_CheckExact(args[i]) && !PyList_CheckExact(args[i])) continue;
        PyObject **items = PySequence_Fast_ITEMS(args[i]);
        for (Py_ssize_t j = 0; j < PySequence_Fast_GET_SIZE(args[i]); j++)
            if (is_value(items[j])) return known_of(items[j]);
    }
    return NULL;
}

/* ---- The words of a call. These functions give 1, 0 if something is not described by words, or -1 for an error. */

static int add_words(Call *call, long long first, long long second) {
    if (call->num_words + 2 > MOST_WORDS) return 0;
    call->words[call->num_words++] = first;
    call->words[call->num_words++] = second;
    return 1;
}

static int add_word(Call *call, long long word) {
    if (call->num_words == MOST_WORDS) return 0;
    call->words[call->num_words++] = word;
    return 1;
}

static int add_object(Call *call, long long what, PyObject *object) {
    if (call->num_held == MOST_WORDS) return 0;
    call->held[call->num_held++] = object;
    return add_words(call, what, (long long)(intptr_t)object);
}

static int add_number(Call *call, long long number) {
    if (call->num_numbers == MOST_PARTS) return 0;
    call->numbers[call->num_numbers++] = number;
    return 1;
}

static int add_later(Call *call, PyObject *value) {
    if (call->num_later == MOST_LATER) return 0;
    call->later[call->num_later] = value;
    call->places[call->num_later++] = call->num_numbers;
    return add_number(call, 0);
}

static int describe_value(Call *call, PyObject *value) {
    PyObject *kind = SLOT(value, at.kind), *ref = SLOT(value, at.ref);
    if (kind == NULL || ref == NULL) return 0;
    if (Py_IS_TYPE(value, at.lazy))
        return add_word(call, (intptr_t)kind) && add_number(call, PyLong_AsLongLong(ref));
    if (Py_IS_TYPE(value, at.pending))
        return add_word(call, (intptr_t)SLOT(kind, at.one)) && add_later(call, value);
    PyObject *length = SLOT(value, at.length);
    if (length == NULL || (call->rows != NULL && PyLong_AsLong(SLOT(call->rows, at.length)) != PyLong_AsLong(length)))
        return 0;
    call->rows = value;
    if (ref != Py_None) return add_word(call, (intptr_t)kind) && add_number(call, PyLong_AsLongLong(ref));
    if (SLOT(value, at.context) != call->known->context) return 0; /* it was stacked in other modes */
    call->is_listed = 1;
    return add_words(call, LISTED, (intptr_t)kind) && add_later(call, value);
}

static int describe_tensor(Call *call, PyObject *value) {
    if (Py_IS_TYPE(value, at.parameter)) return add_object(call, SHARED, value);
    PyObject *identity = PyLong_FromVoidPtr(value);
    if (identity == NULL) return -1;
    int is_described = PyDict_Contains(call->known->shared, identity);
    if (is_described == 1) is_described = add_object(call, SHARED, value);
    else if (is_described == 0) {
        PyObject *known = PyDict_GetItemWithError(call->known->outside, identity);
        if (known != NULL && Py_IS_TYPE(known, at.lazy)) is_described = describe_value(call, known);
        else if (PyErr_Occurred()) is_described = -1;
    }
    Py_DECREF(identity);
    return is_described;
}

static int describe_number(Call *call, PyObject *value, int are_data) {
    long long number;
    int is_float = PyFloat_CheckExact(value), overflow = 0;
    if (is_float) {
        double bits = PyFloat_AS_DOUBLE(value);
        memcpy(&number, &bits, sizeof bits);
    } else {
        number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow != 0) return 0;
    }
    if (are_data) return add_word(call, is_float ? FLOAT_DATA : INT_DATA) && add_number(call, number);
    return add_words(call, is_float ? FLOAT : INT, number);
}

static int describe_slice(Call *call, PyObject *value) {
    PySliceObject *slice = (PySliceObject *)value;
    PyObject *parts[3] = {slice->start, slice->stop, slice->step};
    int is_described = add_word(call, SLICE);
    for (int i = 0; is_described == 1 && i < 3; i++) {
        if (parts[i] == Py_None) is_described = add_word(call, (intptr_t)Py_None);
        else is_described = PyLong_CheckExact(parts[i]) ? describe_number(call, parts[i], 0) : 0;
    }
    return is_described;
}

/* A string by its characters: it may be made anew for every call. */
static int describe_text(Call *call, PyObject *value) {
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(value, &length);
    if (text == NULL) return PyErr_Clear(), 0;
    int is_described = add_words(call, TEXT, length);
    for (Py_ssize_t i = 0; is_described == 1 && i < length; i += sizeof(long long)) {
        long long word = 0;
        memcpy(&word, text + i, Py_MIN((size_t)(length - i), sizeof word));
        is_described = add_word(call, word);
    }
    return is_described;
}

static int describe(Call *call, PyObject *value, int are_data) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == at.lazy || type == at.pending || type == at.ragged) {
        call->has_value = 1;
        return describe_value(call, value);
    }
    if (type == &PyLong_Type || type == &PyFloat_Type) return describe_number(call, value, are_data);
    if (value == Py_None || type == &PyBool_Type) return add_word(call, (intptr_t)value);
    if (type == at.parameter || type == at.tensor) return describe_tensor(call, value);
    if (type == &PyTuple_Type || type == &PyList_Type || type == at.size) {
        Py_ssize_t length = PySequence_Fast_GET_SIZE(value);
        int is_described = add_words(call, type == &PyList_Type ? LIST : TUPLE, length);
        for (Py_ssize_t i = 0; is_described == 1 && i < length; i++)
            is_described = describe(call, PySequence_Fast_GET_ITEM(value, i), are_data);
        return is_described;
    }
    if (type == &PyUnicode_Type)
        return PyUnicode_CHECK_INTERNED(value) ? add_object(call, OBJECT, value) : describe_text(call, value);
    if (type == at.dtype || value == Py_Ellipsis) return add_object(call, OBJECT, value);
    return type == &PySlice_Type ? describe_slice(call, value) : 0;
}

static void begin_call(Call *call, KnownCalls *known, PyObject *function) {
    call->known = known;
    call->num_words = call->num_numbers = call->num_later = call->num_held = 0;
    call->rows = NULL;
    call->has_value = call->is_listed = 0;
    add_words(call, (intptr_t)known->context, (intptr_t)function);
    call->held[call->num_held++] = function;
}

/* Describe a call by its arguments; those behind the first `count` are named by `keywords`. */
static int describe_call(Call *call, KnownCalls *known, Function *self, PyObject *const *args, Py_ssize_t count,
                         PyObject *keywords) {
    begin_call(call, known, self->function);
    int is_described = 1;
    for (Py_ssize_t i = 0; is_described == 1 && i < count; i++) is_described = describe(call, args[i], self->are_data);
    if (is_described != 1 || keywords == NULL || PyTuple_GET_SIZE(keywords) == 0) return is_described;
    is_described = add_word(call, KEYWORDS);
    for (Py_ssize_t i = 0; is_described == 1 && i < PyTuple_GET_SIZE(keywords); i++) {
        is_described = describe(call, PyTuple_GET_ITEM(keywords, i), 0);
        if (is_described == 1) is_described = describe(call, args[count + i], 0);
    }
    return is_described;
}

/* ---- The table of known operations: open addressing, at most half full */

static Operation **place_of(KnownCalls *known, const long long *words, Py_ssize_t count) {
    unsigned long long hash = 0;
    for (Py_ssize_t i = 0; i < count; i++) hash = ((hash ^ (hash >> 29)) + (unsigned long long)words[i]) * 0x9E3779B97F4A7C15ull;
    for (size_t place = hash >> 32;; place++) {
        Operation **found = &known->operations[place & (known->room - 1)];
        if (*found == NULL) return found;
        if ((*found)->count == count && memcmp((*found)->words, words, count * sizeof(long long)) == 0) return found;
    }
}

static Operation *operation_of(KnownCalls *known, const Call *call) {
    return known->room == 0 ? NULL : *place_of(known, call->words, call->num_words);
}

static void free_operation(Operation *operation) {
    Py_XDECREF(operation->entry);
    Py_XDECREF(operation->kinds);
    Py_XDECREF(operation->held);
    PyMem_Free(operation);
}

static void forget_operations(KnownCalls *known) {
    Operation **operations = known->operations;
    size_t room = known->room;
    known->operations = NULL;
    known->room = known->num_operations = 0;
    for (size_t i = 0; i < room; i++)
        if (operations[i] != NULL) free_operation(operations[i]);
    PyMem_Free(operations);
}

static int make_room(KnownCalls *known) {
    if (2 * (known->num_operations + 1) <= known->room) return 0;
    Operation **old = known->operations;
    size_t room = known->room;
    Operation **new = PyMem_Calloc(room == 0 ? 64 : 2 * room, sizeof(Operation *));
    if (new == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    known->operations = new;
    known->room = room == 0 ? 64 : 2 * room;
    for (size_t i = 0; i < room; i++)
        if (old[i] != NULL) *place_of(known, old[i]->words, old[i]->count) = old[i];
    PyMem_Free(old);
    return 0;
}

/* A new operation for the words of a call, in the table; NULL without an error if there are very many. */
static Operation *new_operation(const Call *call, long long type) {
    KnownCalls *known = call->known;
    if (known->num_operations >= MOST_OPERATIONS || make_room(known) < 0) return NULL;
    Operation **place = place_of(known, call->words, call->num_words);
    if (*place != NULL) return NULL;
    PyObject *held = PyTuple_New(call->num_held);
    Operation *made = PyMem_Calloc(1, sizeof(Operation) + call->num_words * sizeof(long long));
    if (held == NULL || made == NULL) {
        Py_XDECREF(held);
        PyMem_Free(made);
        return (Operation *)PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < call->num_held; i++) PyTuple_SET_ITEM(held, i, Py_NewRef(call->held[i]));
    made->held = held;
    made->type = type;
    made->count = call->num_words;
    memcpy(made->words, call->words, call->num_words * sizeof(long long));
    known->num_operations++;
    return *place = made;
}

/* ---- Nodes that get a reference for a value which has none yet */

static int add_list_node(KnownCalls *known, long long type, PyObject *refs, Py_ssize_t count, const long long *last) {
    long long length = count;
    if (enter(known) < 0) return -1;
    Py_ssize_t before = known->args->size;
    int failed = numbers_push(known->args, &length, 1) < 0;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        long long ref = PyLong_AsLongLong(PyList_GET_ITEM(refs, i));
        failed = (ref == -1 && PyErr_Occurred()) || numbers_push(known->args, &ref, 1) < 0;
    }
    failed = failed || (last != NULL && numbers_push(known->args, last, 1) < 0);
    if (!failed && numbers_push(known->types, &type, 1) == 0) return 0;
    known->args->size = before;
    return -1;
}

/* Let the long way in Python record one node for a value, and remember its type by the words of a call. */
static int add_node_in_python(const Call *call, PyObject *function, PyObject *value) {
    Py_ssize_t before = call->known->types->size;
    PyObject *made = PyObject_CallFunctionObjArgs(function, SLOT(SLOT(value, at.kind), at.recorder), value, NULL);
    if (made == NULL) return -1;
    Py_DECREF(made);
    if (call->known->types->size == before + 1 && call->known->context != NULL)
        new_operation(call, call->known->types->data[before]);
    return PyErr_Occurred() ? -1 : 0;
}

static int set_ref(PyObject *value, PyObject *ref) {
    if (ref == NULL) return -1;
    Py_XSETREF(SLOT(value, at.ref), ref);
    return 0;
}

/* Record a pending sum: it becomes a plain lazy value. */
static int record_sum(KnownCalls *known, PyObject *value) {
    PyObject *sum = SLOT(value, at.ref), *one = SLOT(SLOT(value, at.kind), at.one); /* sum: (terms, count, context) */
    if (!PyTuple_CheckExact(sum) || PyTuple_GET_SIZE(sum) != 3 || !PyList_CheckExact(PyTuple_GET_ITEM(sum, 0)))
        return PyErr_BadInternalCall(), -1;
    PyObject *terms = PyTuple_GET_ITEM(sum, 0), *ref;
    Py_ssize_t count = PyLong_AsSsize_t(PyTuple_GET_ITEM(sum, 1));
    if (count < 1 || count > PyList_GET_SIZE(terms)) return PyErr_BadInternalCall(), -1;
    if (count == 1) { /* 0 + x */
        ref = Py_NewRef(PyList_GET_ITEM(terms, 0));
    } else {
        Call call;
        begin_call(&call, known, one);
        call.words[0] = (intptr_t)PyTuple_GET_ITEM(sum, 2);
        call.held[call.num_held++] = PyTuple_GET_ITEM(sum, 2);
        add_word(&call, SUM);
        Operation *found = operation_of(known, &call);
        if (found == NULL) return add_node_in_python(&call, known->as_value, value);
        if (add_list_node(known, found->type, terms, count, NULL) < 0) return -1;
        ref = PyLong_FromSsize_t(known->types->size - 1);
    }
    if (ref == NULL) return -1;
    PyTypeObject *before = Py_TYPE(value);
    Py_SET_TYPE(value, (PyTypeObject *)Py_NewRef(at.lazy));
    Py_DECREF(before);
    Py_SETREF(SLOT(value, at.kind), Py_NewRef(one));
    return set_ref(value, ref);
}

/* Record that the values of a stack are copied to lie side by side. */
static int record_stack(KnownCalls *known, PyObject *rows) {
    Call call;
    begin_call(&call, known, SLOT(rows, at.kind));
    add_word(&call, STACK);
    Operation *found = operation_of(known, &call);
    PyObject *elements = SLOT(rows, at.elements);
    if (found == NULL || SLOT(rows, at.context) != known->context || elements == NULL || !PyList_CheckExact(elements))
        return add_node_in_python(&call, at.materialise, rows);
    if (add_list_node(known, found->type, elements, PyList_GET_SIZE(elements), NULL) < 0) return -1;
    return set_ref(rows, PyLong_FromSsize_t(known->types->size - 1));
}

/* ---- The node of a known operation, and its results */

static int give_refs(Call *call) {
    for (Py_ssize_t i = 0; i < call->num_later; i++) {
        PyObject *value = call->later[i];
        int failed = 0;
        if (Py_IS_TYPE(value, at.pending)) failed = record_sum(call->known, value) < 0;
        else if (SLOT(value, at.ref) == Py_None) failed = record_stack(call->known, value) < 0;
        if (failed) return -1;
        call->numbers[call->places[i]] = PyLong_AsLongLong(SLOT(value, at.ref));
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

static PyObject *new_rows(KnownCalls *known, PyObject *kind, PyObject *ref, PyObject *length, PyObject *elements) {
    PyObject *value = ref == NULL ? NULL : at.ragged->tp_alloc(at.ragged, 0);
    if (value == NULL) return NULL;
    fill_value(value);
    SLOT(value, at.kind) = Py_NewRef(SLOT(kind, at.rows));
    SLOT(value, at.ref) = Py_NewRef(ref);
    SLOT(value, at.length) = Py_NewRef(length);
    SLOT(value, at.elements) = Py_NewRef(elements);
    SLOT(value, at.whole) = Py_NewRef(Py_None);
    SLOT(value, at.context) = Py_NewRef(known->context);
    SLOT(value, at.taken) = Py_NewRef(Py_None);
    return value;
}

static PyObject *row_outputs(KnownCalls *known, Operation *found, long long node, PyObject *length) {
    if (!found->per_row) return PyObject_CallMethod(found->entry, "outputs", "LO", node, length);
    PyObject *ref = PyLong_FromLongLong(node);
    PyObject *value = new_rows(known, PyTuple_GET_ITEM(found->kinds, 0), ref, length, Py_None);
    Py_XDECREF(ref);
    return value;
}

static long long bits_of(double value) {
    long long bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Record a call: add its node, and make its results. */
static PyObject *record_operation(Call *call, Operation *found) {
    KnownCalls *known = call->known;
    PyObject *length = call->rows == NULL ? Py_None : SLOT(call->rows, at.length);
    long long last = found->reads_length ? bits_of(PyLong_AsDouble(length)) : 0, node;
    if (found->reads_list) {
        PyObject *elements = SLOT(call->rows, at.elements);
        if (elements == NULL || !PyList_CheckExact(elements)) return PyErr_BadInternalCall(), NULL;
        if (add_list_node(known, found->type, elements, PyList_GET_SIZE(elements), found->reads_length ? &last : NULL) < 0)
            return NULL;
    } else {
        if (give_refs(call) < 0) return NULL;
        if (found->reads_length && !add_number(call, last)) return PyErr_BadInternalCall(), NULL;
        if (enter(known) < 0 || numbers_push(known->args, call->numbers, call->num_numbers) < 0) return NULL;
        if (numbers_push(known->types, &found->type, 1) < 0) {
            known->args->size -= call->num_numbers;
            return NULL;
        }
    }
    node = known->types->size - 1;
    if (found->per_row || found->kinds == NULL) return row_outputs(known, found, node, length);
    return make_outputs(known, found->kinds, node);
}

/* ---- Learning from what the long way recorded */

/* How many nodes were recorded, since there were `before`, only to give references to the arguments of a call. */
static Py_ssize_t num_given(const Call *call, long long before) {
    Py_ssize_t given = 0;
    for (Py_ssize_t i = 0; i < call->num_later; i++) {
        PyObject *ref = SLOT(call->later[i], at.ref);
        if (!PyLong_CheckExact(ref) || PyLong_AsLongLong(ref) < before) continue;
        int is_new = 1;
        for (Py_ssize_t j = 0; is_new && j < i; j++) is_new = PyObject_RichCompareBool(SLOT(call->later[j], at.ref), ref, Py_NE);
        given += is_new;
    }
    return given;
}

/* Whether the last node got just the numbers of a call, and perhaps the length of its stack. `num_args` is how many it
got, or -1 if that differs from node to node of its type. */
static int has_numbers(const Call *after, Py_ssize_t args_before, long long num_args, Operation *how) {
    KnownCalls *known = after->known;
    const long long *end = known->args->data + known->args->size;
    Py_ssize_t count = after->num_numbers;
    if (after->is_listed) {
        PyObject *elements = SLOT(after->rows, at.elements);
        if (after->num_numbers != 1 || elements == NULL || !PyList_CheckExact(elements)) return 0;
        count = 1 + PyList_GET_SIZE(elements);
        how->reads_list = 1;
    } else if (after->num_later > 0) {
        return 0;
    }
    Py_ssize_t recorded = known->args->size - args_before;
    if (after->rows != NULL && (num_args < 0 ? recorded : num_args) == count + 1 && recorded > count) {
        double length = PyLong_AsDouble(SLOT(after->rows, at.length));
        how->reads_length = end[-1] == bits_of(length);
        count += how->reads_length;
    }
    if (recorded < count || (!after->is_listed && num_args != count)) return 0;
    const long long *first = end - count;
    if (!after->is_listed) return memcmp(first, after->numbers, after->num_numbers * sizeof(long long)) == 0;
    PyObject *elements = SLOT(after->rows, at.elements);
    int is_same = first[0] == PyList_GET_SIZE(elements) && recorded == count;
    for (Py_ssize_t i = 0; is_same && i < PyList_GET_SIZE(elements); i++)
        is_same = first[1 + i] == PyLong_AsLongLong(PyList_GET_ITEM(elements, i));
    return is_same;
}

static int is_output(PyObject *value, PyObject *kind, long long ref, PyTypeObject *type) {
    if (!Py_IS_TYPE(value, type) || SLOT(value, at.kind) != kind) return 0;
    PyObject *own = SLOT(value, at.ref);
    return own != NULL && PyLong_CheckExact(own) && PyLong_AsLongLong(own) == ref;
}

static long long int_attribute(PyObject *object, const char *name) {
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value == NULL) return -1;
    long long number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return number;
}

/* Whether the result of a call is what its last node gives. Fills in how the result is made. */
static int gives_result(KnownCalls *known, PyObject *entry, PyObject *result, int is_direct, Operation *how) {
    long long node = known->types->size - 1, simple = int_attribute(entry, "simple");
    if (simple < 0 || int_attribute(entry, "is_plain") != 1) return 0;
    PyObject *kinds = PyObject_GetAttrString(entry, "kinds");
    if (kinds == NULL || !PyTuple_CheckExact(kinds)) return Py_XDECREF(kinds), 0;
    Py_ssize_t count = PyTuple_GET_SIZE(kinds);
    PyObject *first = count > 0 ? PyTuple_GET_ITEM(kinds, 0) : NULL;
    int is_same = 0;
    how->kinds = kinds;
    if (simple == 1) is_same = is_output(result, first, node, at.lazy);
    else if (simple > 1 && PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) == count) {
        is_same = 1;
        for (Py_ssize_t i = 0; is_same && i < count; i++)
            is_same = is_output(PyTuple_GET_ITEM(result, i), PyTuple_GET_ITEM(kinds, i), node + (i << REF_BITS), at.lazy);
    } else if (count == 1 && is_output(result, SLOT(first, at.rows), node, at.ragged)) {
        is_same = how->per_row = 1;
    } else if (simple == 0 && is_direct) {
        is_same = 1;
        Py_CLEAR(how->kinds);
    }
    if (!is_same) Py_CLEAR(how->kinds);
    return is_same;
}

static int are_distinct(const Call *call) {
    for (Py_ssize_t i = 0; i < call->num_numbers; i++)
        for (Py_ssize_t j = 0; j < i; j++)
            if (call->numbers[i] == call->numbers[j]) return 0;
    return 1;
}

/* Remember a call that took the long way, if its words decide what that recorded. `before` describes the call as it was
before, `after` as it is now; there were that many nodes and numbers before. Errors are left set. */
static void learn_operation(const Call *before, const Call *after, Py_ssize_t nodes, Py_ssize_t numbers,
                            PyObject *result, int is_direct) {
    KnownCalls *known = before->known;
    Operation how = {0};
    long long node = known->types->size - 1;
    if (known->context == NULL || (intptr_t)known->context != before->words[0] || node < nodes) return;
    if (node - nodes != num_given(before, nodes)) return;
    if (!is_direct && !are_distinct(after)) return; /* torch may have changed the order of arguments */
    long long type = known->types->data[node];
    PyObject *entry = type < PyList_GET_SIZE(known->entries) ? PyList_GET_ITEM(known->entries, type) : NULL;
    if (entry == NULL || !has_numbers(after, numbers, int_attribute(entry, "num_args"), &how)) return;
    if (PyErr_Occurred() || !gives_result(known, entry, result, is_direct, &how)) return;
    Operation *made = new_operation(before, type);
    if (made == NULL) {
        Py_XDECREF(how.kinds);
        return;
    }
    made->entry = Py_NewRef(entry);
    made->kinds = how.kinds;
    made->per_row = how.per_row;
    made->reads_list = how.reads_list;
    made->reads_length = how.reads_length;
}

/* ---- Calls that torch hands to the mode that records: `parameter * x`, and functions that are not met by name */

static int describe_given(Call *call, KnownCalls *known, PyObject *function, PyObject *args, PyObject *keywords) {
    int are_data = PySet_Contains(at.arithmetic, function), is_described = 1;
    if (are_data < 0) return PyErr_Clear(), 0;
    begin_call(call, known, function);
    for (Py_ssize_t i = 0; is_described == 1 && i < PyTuple_GET_SIZE(args); i++)
        is_described = describe(call, PyTuple_GET_ITEM(args, i), are_data);
    if (is_described != 1 || keywords == Py_None || PyDict_GET_SIZE(keywords) == 0) return is_described;
    is_described = add_word(call, KEYWORDS);
    PyObject *name, *value;
    for (Py_ssize_t i = 0; is_described == 1 && PyDict_Next(keywords, &i, &name, &value);) {
        is_described = describe(call, name, 0);
        if (is_described == 1) is_described = describe(call, value, 0);
    }
    return is_described;
}

/* Whether an argument is no lazy value, no tensor that examples share, and nothing that holds one, as far as is sure. */
static int is_plain(KnownCalls *known, PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == at.tensor) {
        PyObject *identity = PyLong_FromVoidPtr(value);
        int is_shared = identity == NULL ? -1 : PyDict_Contains(known->shared, identity);
        Py_XDECREF(identity);
        return is_shared < 0 ? -1 : !is_shared;
    }
    if (type == &PyTuple_Type || type == &PyList_Type || type == at.size) {
        int are_plain = 1;
        for (Py_ssize_t i = 0; are_plain == 1 && i < PySequence_Fast_GET_SIZE(value); i++)
            are_plain = is_plain(known, PySequence_Fast_GET_ITEM(value, i));
        return are_plain;
    }
    return type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || type == &PyUnicode_Type ||
           value == Py_None || value == Py_Ellipsis || type == at.dtype || type == at.device;
}

/* Whether a call runs at once, as if nobody recorded: 1, 0 if that is not sure, or -1 for an error. */
static int runs_at_once(KnownCalls *known, PyObject *args, PyObject *keywords) {
    if (PyDict_GET_SIZE(known->overwritten) > 0) return 0;
    int are_plain = is_plain(known, args);
    PyObject *name, *value;
    for (Py_ssize_t i = 0; keywords != Py_None && are_plain == 1 && PyDict_Next(keywords, &i, &name, &value);)
        are_plain = PyUnicode_CompareWithASCIIString(name, "out") == 0 ? 0 : is_plain(known, value);
    return are_plain;
}

/* The result of a function that runs at once; `made` gets a weak reference to it by its identity, if it is a dict. */
static PyObject *run_at_once(PyObject *function, PyObject *args, PyObject *keywords, PyObject *made) {
    PyObject *result = PyObject_Call(function, args, keywords == Py_None ? NULL : keywords);
    if (result == NULL || !PyDict_Check(made)) return result;
    PyObject *identity = PyLong_FromVoidPtr(result), *reference = PyWeakref_NewRef(result, NULL);
    if (identity == NULL || reference == NULL || PyDict_SetItem(made, identity, reference) < 0) Py_CLEAR(result);
    Py_XDECREF(identity);
    Py_XDECREF(reference);
    return result;
}

/* record(function, args, keywords or None, otherwise): the result of a call; otherwise(function, args, keywords) gives it
if the call is not known. */
static PyObject *known_record(KnownCalls *self, PyObject *const *given, Py_ssize_t count) {
    if (count != 4 || !PyTuple_Check(given[1]) || !(given[2] == Py_None || PyDict_Check(given[2])))
        return PyErr_Format(PyExc_TypeError, "record(function, args, keywords, otherwise)");
    if (self->context != NULL && self->at_once != NULL && self->overwritten != NULL) {
        PyObject *made = PyDict_GetItemWithError(self->at_once, given[0]);
        if (made == NULL) PyErr_Clear(); /* it cannot be hashed */
        int is_at_once = made == NULL ? 0 : runs_at_once(self, given[1], given[2]);
        if (is_at_once < 0) return NULL;
        if (is_at_once) return run_at_once(given[0], given[1], given[2], made);
    }
    Call call, after;
    int is_described = 0;
    if (self->context != NULL) is_described = describe_given(&call, self, given[0], given[1], given[2]);
    if (is_described < 0) return NULL;
    is_described = is_described && call.has_value; /* others run at once, or once for all examples */
    Operation *found = is_described ? operation_of(self, &call) : NULL;
    if (found != NULL) return record_operation(&call, found);
    Py_ssize_t nodes = self->types->size, numbers = self->args->size;
    PyObject *keywords = given[2] == Py_None ? PyDict_New() : Py_NewRef(given[2]);
    if (keywords == NULL) return NULL;
    PyObject *result = PyObject_CallFunctionObjArgs(given[3], given[0], given[1], keywords, NULL);
    Py_DECREF(keywords);
    if (result != NULL && is_described && self->types->size > nodes && self->context != NULL &&
        describe_given(&after, self, given[0], given[1], given[2]) == 1)
        learn_operation(&call, &after, nodes, numbers, result, 1);
    if (PyErr_Occurred()) Py_CLEAR(result);
    return result;
}

/* ---- Function: the way of all calls */

static PyObject *take_long_way(Function *self, Call *call, PyObject *const *args, size_t flags, PyObject *keywords) {
    KnownCalls *known = (KnownCalls *)Py_NewRef(call->known);
    Py_ssize_t nodes = known->types->size, numbers = known->args->size, count = PyVectorcall_NARGS(flags);
    PyObject *result = PyObject_Vectorcall(self->otherwise, args, flags, keywords);
    if (result != NULL && result != Py_NotImplemented && known->types->size > nodes && known->context != NULL) {
        Call after;
        if (describe_call(&after, known, self, args, count, keywords) == 1)
            learn_operation(call, &after, nodes, numbers, result, self->is_direct);
        if (PyErr_Occurred()) Py_CLEAR(result);
    }
    Py_DECREF(known);
    return result;
}

/* Whether modes that the user has entered want to see calls of torch's functions. */
static int are_modes_around(KnownCalls *known) {
    PyObject *count = PyObject_CallNoArgs(at.count_modes);
    if (count == NULL) return -1;
    int are_around = PyLong_AsLong(count) != known->num_modes;
    Py_DECREF(count);
    return are_around;
}

static PyObject *function_call(Function *self, PyObject *const *args, size_t flags, PyObject *keywords) {
    Py_ssize_t count = PyVectorcall_NARGS(flags), all = count + (keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords));
    KnownCalls *known = find_known(args, all);
    if (known == NULL || known->context == NULL) return PyObject_Vectorcall(self->otherwise, args, flags, keywords);
    if (self->is_named) {
        int are_around = are_modes_around(known);
        if (are_around != 0)
            return are_around < 0 ? NULL : PyObject_Vectorcall(self->otherwise, args, flags, keywords);
    }
    Call call;
    int is_described = describe_call(&call, known, self, args, count, keywords);
    if (is_described < 0) return NULL;
    if (is_described == 0) return PyObject_Vectorcall(self->otherwise, args, flags, keywords);
    Operation *found = operation_of(known, &call);
    if (found != NULL) return record_operation(&call, found);
    for (Py_ssize_t i = 0; i < call.num_later; i++) Py_INCREF(call.later[i]); /* an operand may be written meanwhile */
    PyObject *result = take_long_way(self, &call, args, flags, keywords);
    for (Py_ssize_t i = 0; i < call.num_later; i++) Py_DECREF(call.later[i]);
    return result;
}

static PyObject *function_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *function, *otherwise;
    int are_data, is_direct, is_named;
    if (!PyArg_ParseTuple(args, "OOppp", &function, &otherwise, &are_data, &is_direct, &is_named)) return NULL;
    Function *self = (Function *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->function = Py_NewRef(function);
    self->otherwise = Py_NewRef(otherwise);
    self->are_data = are_data;
    self->is_direct = is_direct;
    self->is_named = is_named;
    self->vectorcall = (vectorcallfunc)function_call;
    return (PyObject *)self;
}

static void function_dealloc(Function *self) {
    if (self->weak != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    Py_CLEAR(self->function);
    Py_CLEAR(self->otherwise);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *method_get(PyObject *self, PyObject *value, PyObject *type) {
    return value == NULL || value == Py_None ? Py_NewRef(self) : PyMethod_New(self, value);
}

/* What stands in a namespace of torch looks like the function whose place it takes. */
static PyObject *named_attribute(Function *self, PyObject *name) {
    int is_text = PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "__doc__") == 0;
    if (is_text) return PyObject_GetAttr(self->function, name);
    PyObject *found = PyObject_GenericGetAttr((PyObject *)self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(self->function, name);
}

static PyObject *named_repr(Function *self) { return PyObject_Repr(self->function); }

/* It is pickled as the function itself: found by its name where it is read. */
static PyObject *named_reduce(Function *self, PyObject *nothing) {
    PyObject *tools = PyImport_ImportModule("pkgutil");
    PyObject *resolve = tools == NULL ? NULL : PyObject_GetAttrString(tools, "resolve_name");
    PyObject *place = PyObject_GetAttrString(self->function, "__module__");
    PyObject *name = PyObject_GetAttrString(self->function, "__name__");
    PyObject *reduced = NULL;
    if (resolve != NULL && place != NULL && name != NULL) {
        PyObject *full = PyUnicode_FromFormat("%S:%U", place == Py_None ? PyUnicode_FromString("torch") : place, name);
        if (full != NULL) reduced = Py_BuildValue("O(N)", resolve, full);
    }
    Py_XDECREF(tools);
    Py_XDECREF(resolve);
    Py_XDECREF(place);
    Py_XDECREF(name);
    return reduced;
}

static PyTypeObject MethodType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.recording._calls.Method",
    .tp_doc = "Method(function, otherwise, are_data, is_direct, is_named): records known calls of a method.",
    .tp_basicsize = sizeof(Function),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = function_new,
    .tp_dealloc = (destructor)function_dealloc,
    .tp_vectorcall_offset = offsetof(Function, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = method_get,
};

static Py_hash_t named_hash(Function *self) { return PyObject_Hash(self->function); }

/* It is equal to the function: code of torch that finds itself by its name hands it to modes, which have tables. */
static PyObject *named_compare(Function *self, PyObject *other, int how) {
    if (how != Py_EQ && how != Py_NE) Py_RETURN_NOTIMPLEMENTED;
    PyObject *function = Py_IS_TYPE(other, Py_TYPE(self)) ? ((Function *)other)->function : other;
    return PyBool_FromLong((self->function == function) == (how == Py_EQ));
}

static PyMemberDef named_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Function, function), READONLY, "The function in whose place it stands."},
    {NULL},
};
static PyMethodDef named_methods[] = {
    {"__reduce__", (PyCFunction)named_reduce, METH_NOARGS, "It is pickled by its name."},
    {NULL},
};
static PyTypeObject NamedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "edbatch.recording._calls.Named",
    .tp_doc = "Named(function, otherwise, are_data, is_direct, is_named): records known calls of a torch function.",
    .tp_basicsize = sizeof(Function),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = function_new,
    .tp_dealloc = (destructor)function_dealloc,
    .tp_vectorcall_offset = offsetof(Function, vectorcall),
    .tp_weaklistoffset = offsetof(Function, weak),
    .tp_call = PyVectorcall_Call,
    .tp_getattro = (getattrofunc)named_attribute,
    .tp_repr = (reprfunc)named_repr,
    .tp_hash = (hashfunc)named_hash,
    .tp_richcompare = (richcmpfunc)named_compare,
    .tp_members = named_members,
    .tp_methods = named_methods,
};

/* ---- Operators: the slots of `Value` */

enum { ADD, SUB, MUL, TRUEDIV, FLOORDIV, MOD, POW, MATMUL, AND, OR, XOR, LSHIFT, RSHIFT, NEG, POS, ABS, INVERT, NUM_OPERATORS };
static const char *const operator_names[NUM_OPERATORS] = {
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
    "neg", "pos", "abs", "invert",
};
/* Of each operator the Function of calls with a value on the left, and only on the right. */
static Function *operators[NUM_OPERATORS][2];

/* The Function of a reflected operator takes the right operand first if it goes the long way, as `__rsub__` does. */
static PyObject *reflected_call(Function *self, PyObject *left, PyObject *right) {
    PyObject *args[2] = {left, right}, *swapped[2] = {right, left};
    KnownCalls *known = known_of(right);
    if (known == NULL || known->context == NULL) return PyObject_Vectorcall(self->otherwise, swapped, 2, NULL);
    Call call, after;
    int is_described = describe_call(&call, known, self, args, 2, NULL);
    if (is_described < 0) return NULL;
    Operation *found = is_described ? operation_of(known, &call) : NULL;
    if (found != NULL) return record_operation(&call, found);
    Py_ssize_t nodes = known->types->size, numbers = known->args->size;
    Py_INCREF(known);
    Py_INCREF(right);
    PyObject *result = PyObject_Vectorcall(self->otherwise, swapped, 2, NULL);
    if (result != NULL && result != Py_NotImplemented && is_described && known->types->size > nodes &&
        known->context != NULL && describe_call(&after, known, self, args, 2, NULL) == 1)
        learn_operation(&call, &after, nodes, numbers, result, 1);
    if (PyErr_Occurred()) Py_CLEAR(result);
    Py_DECREF(right);
    Py_DECREF(known);
    return result;
}

static PyObject *operate(int which, PyObject *left, PyObject *right) {
    if (operators[which][0] == NULL) Py_RETURN_NOTIMPLEMENTED;
    if (!is_value(left)) {
        if (right == NULL) return PyErr_Format(PyExc_TypeError, "bad operand for %s", operator_names[which]);
        if (!is_value(right)) Py_RETURN_NOTIMPLEMENTED;
        return reflected_call(operators[which][1], left, right);
    }
    PyObject *args[2] = {left, right};
    return function_call(operators[which][0], args, right == NULL ? 1 : 2, NULL);
}

static PyObject *new_pending(PyObject *kind, PyObject *terms, Py_ssize_t count, PyObject *context) {
    PyObject *value = terms == NULL ? NULL : at.pending->tp_alloc(at.pending, 0);
    if (value == NULL) return NULL;
    fill_value(value);
    SLOT(value, at.kind) = Py_NewRef(kind);
    if ((SLOT(value, at.ref) = Py_BuildValue("(OnO)", terms, count, context)) == NULL) Py_CLEAR(value);
    return value;
}

/* The common cases of a sum that grows until it is used; NULL without an error for any other addition. */
static PyObject *grow_sum(PyObject *left, PyObject *right) {
    if (!Py_IS_TYPE(right, at.lazy) || SLOT(right, at.ref) == NULL) return NULL;
    KnownCalls *known = known_of(right);
    if (known == NULL || known->context == NULL) return NULL;
    PyObject *kind = SLOT(right, at.kind), *pending = SLOT(kind, at.pending_kind), *ref = SLOT(right, at.ref), *sum;
    if (Py_IS_TYPE(left, at.pending)) {
        if (SLOT(left, at.kind) == NULL || SLOT(SLOT(left, at.kind), at.one) != kind) return NULL;
        sum = SLOT(left, at.ref);
        if (sum == NULL || !PyTuple_CheckExact(sum) || PyTuple_GET_SIZE(sum) != 3) return NULL;
        PyObject *terms = PyTuple_GET_ITEM(sum, 0);
        Py_ssize_t count = PyLong_AsSsize_t(PyTuple_GET_ITEM(sum, 1));
        if (PyTuple_GET_ITEM(sum, 2) != known->context || PyList_GET_SIZE(terms) != count) return NULL;
        if (PyList_Append(terms, ref) < 0) return NULL;
        return new_pending(SLOT(left, at.kind), terms, count + 1, known->context);
    }
    int is_zero = PyLong_CheckExact(left) && PyLong_AsDouble(left) == 0;
    if (pending == NULL || pending == Py_None || PyErr_Occurred()) return PyErr_Clear(), NULL;
    if (is_zero) {
        if (!known->is_usual || PyLong_AsLongLong(ref) < 0) return NULL;
        sum = PyList_New(1);
        if (sum != NULL) PyList_SET_ITEM(sum, 0, Py_NewRef(ref));
    } else {
        if (!Py_IS_TYPE(left, at.lazy) || SLOT(left, at.kind) != kind || SLOT(left, at.ref) == NULL) return NULL;
        sum = PyList_New(2);
        if (sum != NULL) PyList_SET_ITEM(sum, 0, Py_NewRef(SLOT(left, at.ref)));
        if (sum != NULL) PyList_SET_ITEM(sum, 1, Py_NewRef(ref));
    }
    PyObject *value = new_pending(pending, sum, is_zero ? 1 : 2, known->context);
    Py_XDECREF(sum);
    return value;
}

static PyObject *value_add(PyObject *left, PyObject *right) {
    if (operators[ADD][0] == NULL || !(is_value(left) || is_value(right))) Py_RETURN_NOTIMPLEMENTED;
    PyObject *sum = grow_sum(left, right);
    if (sum != NULL || PyErr_Occurred()) return sum;
    if (PyLong_CheckExact(left) && PyLong_AsDouble(left) == 0) { /* 0 + x may be x itself: this is for Python */
        PyObject *swapped[2] = {right, left};
        return PyObject_Vectorcall(operators[ADD][1]->otherwise, swapped, 2, NULL);
    }
    PyErr_Clear();
    return operate(ADD, left, right);
}

#define BINARY(name, which) static PyObject *value_##name(PyObject *l, PyObject *r) { return operate(which, l, r); }
#define UNARY(name, which) static PyObject *value_##name(PyObject *v) { return operate(which, v, NULL); }
BINARY(sub, SUB)
BINARY(mul, MUL)
BINARY(truediv, TRUEDIV)
BINARY(floordiv, FLOORDIV)
BINARY(mod, MOD)
BINARY(matmul, MATMUL)
BINARY(and, AND)
BINARY(or, OR)
BINARY(xor, XOR)
BINARY(lshift, LSHIFT)
BINARY(rshift, RSHIFT)
UNARY(neg, NEG)
UNARY(pos, POS)
UNARY(abs, ABS)
UNARY(invert, INVERT)

static PyObject *value_pow(PyObject *left, PyObject *right, PyObject *modulus) {
    if (modulus != Py_None) Py_RETURN_NOTIMPLEMENTED;
    return operate(POW, left, right);
}

static PyNumberMethods value_numbers = {
    .nb_add = value_add,
    .nb_subtract = value_sub,
    .nb_multiply = value_mul,
    .nb_true_divide = value_truediv,
    .nb_floor_divide = value_floordiv,
    .nb_remainder = value_mod,
    .nb_power = value_pow,
    .nb_matrix_multiply = value_matmul,
    .nb_and = value_and,
    .nb_or = value_or,
    .nb_xor = value_xor,
    .nb_lshift = value_lshift,
    .nb_rshift = value_rshift,
    .nb_negative = value_neg,
    .nb_positive = value_pos,
    .nb_absolute = value_abs,
    .nb_invert = value_invert,
};

/* ---- Indexing by integers, slices, None and ...; integers are data of the call */

static Function *indexing; /* its function is None: what is recorded is not always the same function */

static int describe_index(Call *call, PyObject *value, PyObject *key) {
    begin_call(call, call->known, indexing->function);
    int is_described = describe_value(call, value);
    Py_ssize_t count = PyTuple_CheckExact(key) ? PyTuple_GET_SIZE(key) : 1;
    PyObject *const *items = PyTuple_CheckExact(key) ? ((PyTupleObject *)key)->ob_item : &key;
    for (Py_ssize_t i = 0; is_described == 1 && i < count; i++) {
        int overflow = 0;
        if (PyLong_CheckExact(items[i])) {
            long long number = PyLong_AsLongLongAndOverflow(items[i], &overflow);
            is_described = overflow == 0 && add_word(call, INDEX) && add_number(call, number);
        } else if (items[i] == Py_None) is_described = add_word(call, (intptr_t)Py_None);
        else if (items[i] == Py_Ellipsis) is_described = add_object(call, OBJECT, Py_Ellipsis);
        else is_described = PySlice_Check(items[i]) ? describe_slice(call, items[i]) : 0;
    }
    return is_described == 1 && count == 0 ? 0 : is_described;
}

/* Make the integers of an index non-negative: 1, 0 if one is out of bounds, or -1. */
static int bring_into_bounds(Call *call, PyObject *value, PyObject *key) {
    if (call->num_numbers == 1) return 1; /* no integers */
    PyObject *spec = PyObject_GetAttr(SLOT(value, at.kind), spec_name);
    PyObject *shape = spec == NULL ? NULL : PyObject_GetAttr(spec, shape_name);
    Py_XDECREF(spec);
    if (shape == NULL || !PyTuple_Check(shape)) return Py_XDECREF(shape), -1;
    Py_ssize_t count = PyTuple_CheckExact(key) ? PyTuple_GET_SIZE(key) : 1, dims = 0, dim = 0, number = 1;
    PyObject *const *items = PyTuple_CheckExact(key) ? ((PyTupleObject *)key)->ob_item : &key;
    for (Py_ssize_t i = 0; i < count; i++) dims += items[i] != Py_None && items[i] != Py_Ellipsis;
    int is_inside = 1;
    for (Py_ssize_t i = 0; is_inside == 1 && i < count; i++) {
        if (items[i] == Py_None) continue;
        if (items[i] == Py_Ellipsis) {
            dim += PyTuple_GET_SIZE(shape) - dims;
            continue;
        }
        if (dim < 0 || dim >= PyTuple_GET_SIZE(shape)) is_inside = 0;
        else if (PyLong_CheckExact(items[i])) {
            long long size = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, dim)), *given = &call->numbers[number++];
            if (*given < 0) *given += size;
            is_inside = *given >= 0 && *given < size;
        }
        dim++;
    }
    Py_DECREF(shape);
    return is_inside;
}

/* Tell `note_part` of a part that an integer, and perhaps slices, took of a value. */
static PyObject *noted_part(KnownCalls *known, PyObject *part, PyObject *value, PyObject *key) {
    int has_number = PyLong_CheckExact(key);
    for (Py_ssize_t i = 0; !has_number && PyTuple_CheckExact(key) && i < PyTuple_GET_SIZE(key); i++)
        has_number = PyLong_CheckExact(PyTuple_GET_ITEM(key, i));
    if (part == NULL || !has_number || known->note_part == NULL) return part;
    PyObject *noted = PyTuple_Pack(4, part, value, SLOT(value, at.ref), key);
    PyObject *done = noted == NULL ? NULL : PyObject_CallOneArg(known->note_part, noted);
    if (done == NULL) Py_CLEAR(part);
    Py_XDECREF(noted);
    Py_XDECREF(done);
    return part;
}

static PyObject *value_index(PyObject *value, PyObject *key) {
    if (indexing == NULL || at.lazy == NULL) return PyErr_Format(PyExc_TypeError, "values are not set up");
    PyObject *args[2] = {value, key};
    KnownCalls *known = is_value(value) && !Py_IS_TYPE(value, at.ragged) ? known_of(value) : NULL;
    Call call;
    call.known = known;
    int is_described = known == NULL || known->context == NULL ? 0 : describe_index(&call, value, key);
    if (is_described == 1) is_described = bring_into_bounds(&call, value, key);
    if (is_described < 0) return NULL;
    if (is_described == 0) return PyObject_Vectorcall(indexing->otherwise, args, 2, NULL);
    Operation *found = operation_of(known, &call);
    if (found != NULL) return noted_part(known, record_operation(&call, found), value, key);
    Py_ssize_t nodes = known->types->size, numbers = known->args->size;
    Py_INCREF(known);
    Py_INCREF(value);
    PyObject *result = PyObject_Vectorcall(indexing->otherwise, args, 2, NULL);
    Call after;
    after.known = known;
    if (result != NULL && known->types->size > nodes && known->context != NULL &&
        describe_index(&after, value, key) == 1 && bring_into_bounds(&after, value, key) == 1)
        learn_operation(&call, &after, nodes, numbers, result, 1);
    if (PyErr_Occurred()) Py_CLEAR(result);
    Py_DECREF(value);
    Py_DECREF(known);
    return result;
}

static PyMappingMethods value_mapping = {.mp_subscript = value_index};

/* ---- stack: `torch.stack` of values of one kind, which is only a list of them until it is used */

static PyObject *stack_call(Function *self, PyObject *const *args, size_t flags, PyObject *keywords) {
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (count != 1 || (keywords != NULL && PyTuple_GET_SIZE(keywords) > 1)) goto other;
    if (keywords != NULL && PyTuple_GET_SIZE(keywords) == 1) { /* dim=0 */
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, 0), "dim") != 0) goto other;
        if (!PyLong_CheckExact(args[1]) || PyLong_AsDouble(args[1]) != 0) goto other;
    }
    if (!PyList_CheckExact(args[0]) && !PyTuple_CheckExact(args[0])) goto other;
    Py_ssize_t length = PySequence_Fast_GET_SIZE(args[0]);
    PyObject **items = PySequence_Fast_ITEMS(args[0]);
    if (length == 0 || !Py_IS_TYPE(items[0], at.lazy)) goto other;
    KnownCalls *known = known_of(items[0]);
    if (known == NULL || known->context == NULL) goto other;
    int are_around = are_modes_around(known);
    if (are_around < 0) return NULL;
    PyObject *kind = SLOT(items[0], at.kind);
    for (Py_ssize_t i = 0; !are_around && i < length; i++)
        are_around = !Py_IS_TYPE(items[i], at.lazy) || SLOT(items[i], at.kind) != kind || SLOT(items[i], at.ref) == NULL;
    if (are_around) goto other;
    PyObject *refs = PyList_New(length), *size = PyLong_FromSsize_t(length), *rows = NULL;
    if (refs != NULL && size != NULL) {
        for (Py_ssize_t i = 0; i < length; i++) PyList_SET_ITEM(refs, i, Py_NewRef(SLOT(items[i], at.ref)));
        rows = new_rows(known, kind, Py_None, size, refs);
    }
    Py_XDECREF(refs);
    Py_XDECREF(size);
    return rows;
other:
    if (PyErr_Occurred()) PyErr_Clear();
    return PyObject_Vectorcall(self->otherwise, args, flags, keywords);
}

static PyObject *named_stack(PyObject *module, PyObject *original) {
    Function *self = (Function *)PyObject_CallFunction((PyObject *)&NamedType, "OOOOO", original, original, Py_False, Py_True, Py_True);
    if (self != NULL) self->vectorcall = (vectorcallfunc)stack_call;
    return (PyObject *)self;
}

/* ---- Setting up, at import */

static PyObject *set_operator(PyObject *module, PyObject *args) {
    const char *name;
    PyObject *forward, *reflected;
    if (!PyArg_ParseTuple(args, "sO!O", &name, &MethodType, &forward, &reflected)) return NULL;
    if (strcmp(name, "getitem") == 0) {
        Py_XSETREF(indexing, (Function *)Py_NewRef(forward));
        Py_RETURN_NONE;
    }
    for (int which = 0; which < NUM_OPERATORS; which++) {
        if (strcmp(name, operator_names[which]) != 0) continue;
        Py_XSETREF(operators[which][0], (Function *)Py_NewRef(forward));
        Py_XSETREF(operators[which][1], Py_IS_TYPE(reflected, &MethodType) ? (Function *)Py_NewRef(reflected) : NULL);
        Py_RETURN_NONE;
    }
    return PyErr_Format(PyExc_ValueError, "there is no operator %s", name);
}

static PyObject *set_up(PyObject *module, PyObject *args) {
    PyTypeObject *kind;
    Layout new = {0};
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!O!O!OOO!", &PyType_Type, &new.lazy, &PyType_Type, &new.pending, &PyType_Type,
                          &new.ragged, &PyType_Type, &kind, &PyType_Type, &new.parameter, &PyType_Type, &new.tensor,
                          &PyType_Type, &new.size, &PyType_Type, &new.dtype, &PyType_Type, &new.device, &new.materialise,
                          &new.count_modes, &PyFrozenSet_Type, &new.arithmetic))
        return NULL;
    struct { PyTypeObject *type; const char *name; Py_ssize_t *offset; } slots[] = {
        {new.lazy, "kind", &new.kind}, {new.lazy, "ref", &new.ref}, {new.ragged, "length", &new.length},
        {new.ragged, "elements", &new.elements}, {new.ragged, "whole", &new.whole},
        {new.ragged, "context", &new.context}, {new.ragged, "taken", &new.taken}, {kind, "one", &new.one},
        {kind, "pending", &new.pending_kind}, {kind, "rows", &new.rows}, {kind, "recorder", &new.recorder},
        {kind, "calls", &new.calls},
    };
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++)
        if ((*slots[i].offset = offset_of(slots[i].type, slots[i].name)) < 0) return NULL;
    PyObject *held[] = {(PyObject *)new.lazy, (PyObject *)new.pending, (PyObject *)new.ragged, (PyObject *)new.parameter,
                        (PyObject *)new.tensor, (PyObject *)new.size, (PyObject *)new.dtype, (PyObject *)new.device, new.materialise,
                        new.count_modes, new.arithmetic};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) Py_INCREF(held[i]); /* as long as the process lives */
    at = new;
    Py_RETURN_NONE;
}
