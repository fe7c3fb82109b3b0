/* Calls of compiled entry points from Python, without numba.

An entry point takes its arguments as one row of 64-bit words, and writes its results to another (entries.py). `squeeze_call`
fills the row from a tuple of Python objects: numbers, None, arrays, records, and tuples of these. While it does so it
hashes their types, and the hash selects the entry point. signatures.py hashes numba's types in the
same order.

Of Python only functions of the limited API are used. Of numpy 2 the layout of arrays and scalars is used, which is part
of its binary interface. So one library serves every version of Python.
*/
#include <stddef.h>
#include <stdint.h>

typedef struct object PyObject;
PyObject *PyTuple_New(ptrdiff_t), *PyTuple_GetItem(PyObject *, ptrdiff_t);
ptrdiff_t PyTuple_Size(PyObject *);
int PyTuple_SetItem(PyObject *, ptrdiff_t, PyObject *);
int PyObject_IsTrue(PyObject *), PyType_IsSubtype(PyObject *, PyObject *);
unsigned long PyType_GetFlags(PyObject *);
long long PyLong_AsLongLong(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
double PyFloat_AsDouble(PyObject *);
PyObject *PyLong_FromLongLong(long long), *PyLong_FromUnsignedLongLong(unsigned long long);
PyObject *PyFloat_FromDouble(double), *PyBool_FromLong(long);
PyObject *PyErr_Occurred(void);
void PyErr_Clear(void), PyErr_SetString(PyObject *, const char *);
void Py_IncRef(PyObject *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
extern PyObject *PyExc_SystemError;

/* numba's functions for memory, for kernels that make arrays. Compiled code counts references and reads `data`. Lists, and
   messages of errors that cannot occur, need the last two. */
typedef struct {
    size_t references;
    void *destructor, *about, *data;
    size_t size;
    void *allocator;
} Memory;

void *malloc(size_t);
void free(void *);
void *NRT_Allocate(size_t size) { return malloc(size); }
void NRT_Free(void *memory) { free(memory); }
void NRT_MemInfo_call_dtor(void *memory) { free(memory); }
void *NRT_MemInfo_alloc_aligned(size_t size, unsigned align) {
    Memory *memory = malloc(sizeof *memory + size + align);
    if (!memory) return NULL;
    uintptr_t data = (uintptr_t)(memory + 1);
    if (align) data += (align - data % align) % align;
    *memory = (Memory){1, NULL, NULL, (void *)data, size, NULL};
    return memory;
}
void *NRT_MemInfo_alloc(size_t size) { return NRT_MemInfo_alloc_aligned(size, 0); }
void *NRT_MemInfo_new_varsize_dtor(size_t size, void *destructor) { return NULL; }
void *NRT_MemInfo_varsize_realloc(void *memory, size_t size) { return NULL; }

/* numba's function for another shape of the same memory. Here only for arrays in C order: the result is 0 for others, and
   the kernel raises an exception. */
int numba_attempt_nocopy_reshape(ptrdiff_t dimensions, const ptrdiff_t *shape, const ptrdiff_t *strides,
                                 ptrdiff_t new_dimensions, const ptrdiff_t *new_shape, ptrdiff_t *new_strides,
                                 ptrdiff_t itemsize, int column_order) {
    ptrdiff_t step = itemsize, new_step = itemsize;
    for (ptrdiff_t i = dimensions; i-- > 0; step *= shape[i])
        if (step && shape[i] > 1 && strides[i] != step) return 0;
    for (ptrdiff_t i = new_dimensions; i-- > 0; new_step *= new_shape[i]) new_strides[i] = new_step;
    return !column_order && step == new_step;
}

enum { WORDS = 4096, RESULTS = 64, TUPLE_SUBCLASS = 1 << 26 };
enum { C_ORDER = 1, F_ORDER = 2, ALIGNED = 0x100 };

typedef struct {
    char *data;
    int dimensions;
    ptrdiff_t *shape, *strides;
    PyObject *base;
    char *dtype;
    int flags;
} Array; /* after the head of the object */

typedef struct {
    PyObject *type;
    char kind, byte_order_of_number, order, former_flags;
    int number;
    uint64_t flags;
    ptrdiff_t itemsize;
} Dtype; /* after the head of the object */

typedef struct {
    PyObject *type;
    int64_t kind, size;
} Scalar; /* a type of numbers: 'i', 'u', 'f' or 'b', and bytes; 'R' is a record */

typedef struct {
    ptrdiff_t head; /* bytes of an object's head, which ends with its type */
    PyObject *array, *tuple, *integer, *boolean, *number, *none; /* types */
    PyObject *nothing, *missing; /* None, and the result if there is no entry point */
    int64_t scalars;
    Scalar scalar[32];
} Types;

typedef struct {
    uint64_t signature;
    int32_t (*run)(int64_t *, int64_t *);
    const char *result;
} Entry;

typedef struct {
    const Types *types;
    uint64_t hash;
    int64_t count, *words;
} Row;

static int add(Row *row, int64_t word) {
    if (row->count == WORDS) return 0;
    row->words[row->count++] = word;
    return 1;
}

static void note(Row *row, int64_t value) { row->hash = (row->hash ^ (uint64_t)value) * 0x100000001b3u; }

static int add_array(Row *row, char *object) {
    const Array *array = (const Array *)(object + row->types->head);
    const Dtype *dtype = (const Dtype *)(array->dtype + row->types->head);
    int64_t count = 1;
    if (row->count + 5 + 2 * array->dimensions > WORDS) return 0;
    note(row, 'A');
    note(row, dtype->kind);
    note(row, dtype->itemsize);
    note(row, dtype->order == '>' ? '>' : '<');
    note(row, array->dimensions);
    note(row, array->flags & C_ORDER ? 'C' : array->flags & F_ORDER ? 'F' : 'A');
    note(row, !!(array->flags & ALIGNED));
    for (int i = 0; i < array->dimensions; i++) count *= array->shape[i];
    add(row, 0); /* the memory is kept by the caller */
    add(row, 0);
    add(row, count);
    add(row, dtype->itemsize);
    add(row, (int64_t)array->data);
    for (int i = 0; i < array->dimensions; i++) add(row, array->shape[i]);
    for (int i = 0; i < array->dimensions; i++) add(row, array->strides[i]);
    return 1;
}

static int add_number(Row *row, const Scalar *scalar, const char *value) {
    int64_t word;
    note(row, scalar->kind);
    note(row, scalar->size);
    if (scalar->kind == 'R') return add(row, *(const int64_t *)(value + sizeof(ptrdiff_t))); /* a pointer to the fields */
    switch (scalar->size) {
    case 1: word = *(const int8_t *)value; break;
    case 2: word = *(const int16_t *)value; break;
    case 4: word = *(const int32_t *)value; break;
    default: word = *(const int64_t *)value;
    }
    return add(row, word);
}

static int add_integer(Row *row, PyObject *object) {
    int64_t word = PyLong_AsLongLong(object);
    char kind = 'i';
    if (word == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        kind = 'u';
        word = (int64_t)PyLong_AsUnsignedLongLong(object);
        if (word == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
    }
    note(row, kind);
    note(row, 8);
    return add(row, word);
}

static int add_object(Row *row, PyObject *object);

static int add_tuple(Row *row, PyObject *object) {
    ptrdiff_t size = PyTuple_Size(object);
    note(row, '(');
    for (ptrdiff_t i = 0; i < size; i++)
        if (!add_object(row, PyTuple_GetItem(object, i))) return 0;
    note(row, ')');
    return 1;
}

static int add_object(Row *row, PyObject *object) {
    const Types *types = row->types;
    PyObject *type = *(PyObject **)((char *)object + types->head - sizeof type);
    union { double number; int64_t word; } value;
    if (type == types->array) return add_array(row, (char *)object);
    if (type == types->integer) return add_integer(row, object);
    if (type == types->boolean) {
        note(row, 'b');
        note(row, 1);
        return add(row, PyObject_IsTrue(object));
    }
    if (type == types->none) {
        note(row, 'n');
        return add(row, 0); /* for numba a pointer that is not used */
    }
    if (type == types->number) {
        note(row, 'f');
        note(row, 8);
        value.number = PyFloat_AsDouble(object);
        return add(row, value.word);
    }
    if (type == types->tuple || PyType_GetFlags(type) & TUPLE_SUBCLASS) return add_tuple(row, object);
    for (int64_t i = 0; i < types->scalars; i++)
        if (type == types->scalar[i].type) {
            Scalar scalar = types->scalar[i];
            if (scalar.kind == 'R') { /* its size is that of its dtype, which follows the pointer */
                char *dtype = *(char **)((char *)object + types->head + 2 * sizeof(ptrdiff_t));
                scalar.size = ((const Dtype *)(dtype + types->head))->itemsize;
            }
            return add_number(row, &scalar, (const char *)object + types->head);
        }
    if (PyType_IsSubtype(type, types->array)) return add_array(row, (char *)object);
    return 0;
}

static PyObject *result_of(const char **what, const int64_t **words) {
    union { int64_t word; double number; } value;
    char kind = *(*what)++;
    PyObject *found;
    if (kind == '(') {
        ptrdiff_t size = *(*what)++ - '0', i = 0;
        found = PyTuple_New(size);
        for (; found && i < size; i++) {
            PyObject *item = result_of(what, words);
            if (!item) return NULL;
            PyTuple_SetItem(found, i, item);
        }
        return found;
    }
    value.word = *(*words)++;
    switch (kind) {
    case 'u': return PyLong_FromUnsignedLongLong((uint64_t)value.word);
    case 'f': return PyFloat_FromDouble(value.number);
    case 'b': return PyBool_FromLong(value.word != 0);
    default: return PyLong_FromLongLong(value.word);
    }
}

/* Call the entry point that takes these arguments; return `types->missing` if there is none. */
PyObject *squeeze_call(PyObject *arguments, const Types *types, const Entry *entries, int64_t count) {
    int64_t words[WORDS], results[RESULTS];
    Row row = {types, 0xcbf29ce484222325u, 0, words};
    if (add_tuple(&row, arguments))
        for (int64_t i = 0; i < count; i++)
            if (entries[i].signature == row.hash) {
                const char *what = entries[i].result;
                const int64_t *next = results;
                void *thread = PyEval_SaveThread();
                int32_t failed = entries[i].run(words, results);
                PyEval_RestoreThread(thread);
                if (failed) {
                    PyErr_SetString(PyExc_SystemError, "compiled code raised an exception");
                    return NULL;
                }
                if (*what != 'n') return result_of(&what, &next);
                Py_IncRef(types->nothing);
                return types->nothing;
            }
    Py_IncRef(types->missing);
    return types->missing;
}
