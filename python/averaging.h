#pragma once

#include <torch/csrc/utils/pybind.h>

namespace stormo::python {

/// Adds to the module what works behind PyTorch's own wrappers: GradientAverager, ArenaScope and
/// register_average_hook().
void bind_averaging(py::module_& m);

}  // namespace stormo::python
