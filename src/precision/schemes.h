// The table of named schemes stands in schemes.cc; this is the one helper that other rows of formats need.
#pragma once

#include "precision/plan.h"

namespace octavo {

// The same format as a weight has it: its scales lie beside it (ScaleTime::kStored) where it has any.
TensorFormat weight_format(TensorFormat format);

}  // namespace octavo
