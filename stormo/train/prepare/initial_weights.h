#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/base/status.h>
#include <stormo/train/prepare/preprocessing.h>
#include <stormo/train/recipe/recipe.h>

// Fine-tuning: a new run begins with the weights of a checkpoint (Recipe::init).
namespace stormo::train {

/// OK without Recipe::init, or if its checkpoint has a tensor of the same name and shape for each
/// of `module` that does not begin anew. kInvalidArgument lists the others, and names in init.anew
/// that the model does not have; kNotFound, kCorrupt: there is no whole checkpoint.
Status check_initial_weights(const Recipe& recipe, const torch::nn::Module& module);

/// After that check: reads the weights into `module`, which must have memory for them; numbers of
/// another precision are converted. Returns lines for the user: what was taken, what begins anew,
/// what of the checkpoint is not used.
Result<std::vector<std::string>> load_initial_weights(const Recipe& recipe,
                                                      const Preprocessing& data,
                                                      const torch::nn::Module& module);

/// What words and characters mean to the model that a run begins with, or, when it goes on, began
/// with: vocabularies of the checkpoint. Empty ones without Recipe::init.
Result<Preprocessing> initial_vocabulary(const Recipe& recipe);

}  // namespace stormo::train
