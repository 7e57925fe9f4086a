#include <stormo/model/mlp.h>

#include <string>

#include <stormo/base/check.h>
#include <stormo/model/dense.h>

namespace stormo::model {

Mlp::Mlp(const std::vector<std::int64_t>& sizes, MlpCut cut) : Chain("Mlp") {
  STORMO_CHECK(sizes.size() >= 2, "an MLP has an input and an output size");
  const bool by_columns = cut == MlpCut::kByColumns;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
    const bool last = i + 2 == sizes.size();
    const auto activation = last ? Dense::Activation::kNone : Dense::Activation::kRelu;
    DenseCut of_layer = cut_of_layer(i, sizes.size() - 1);
    if (by_columns) of_layer = i == 0 ? DenseCut::kByInputs : DenseCut::kNone;
    append("layer" + std::to_string(i), [=, inputs = sizes[i], outputs = sizes[i + 1]] {
      return std::make_shared<Dense>(inputs, outputs, activation, of_layer, std::nullopt,
                                     by_columns && last);
    });
  }
}

}  // namespace stormo::model
