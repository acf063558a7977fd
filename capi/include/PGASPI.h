/* The profiling names of GASPI's calls, which GASPI.h declares beside the others. */
#include "GASPI.h"
