// The page decoders and arithmetics of the instruction set that this is compiled for.
#pragma once

#if defined(__AVX512F__)
#include "kernels/cpu/common/kv_lines_avx512.h"
#else
#include "kernels/cpu/common/kv_lines_avx2.h"
#endif
