#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/model/chain.h>
#include <stormo/model/options.h>

namespace stormo::model {

/// The names that ModelOptions::kind may have.
const std::vector<std::string>& model_kinds();
/// Whether samples of such a model are images [channels, height, width].
bool takes_images(const std::string& kind);

/// Everything that is wrong with `options`, one message each; empty when make_model() will work.
std::vector<std::string> validate(const ModelOptions& options);

/// The model, its parameters drawn from libtorch's generator (torch::manual_seed); kInvalidArgument
/// lists everything that is wrong, one line each.
Result<std::shared_ptr<Chain>> make_model(const ModelOptions& options);

}  // namespace stormo::model
