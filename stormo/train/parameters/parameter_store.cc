#include <stormo/train/parameters/parameter_store.h>

namespace stormo::train {

bool ParameterStore::moves(plan::ActionKind kind) {
  using enum plan::ActionKind;
  const bool of_parameters = range_of(kind) == plan::RangeOf::kParameters && kind != kUpdate;
  return of_parameters || kind == kCount || kind == kFindUnused;
}

}  // namespace stormo::train
