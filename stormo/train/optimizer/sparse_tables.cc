#include <stormo/train/optimizer/sparse_tables.h>

#include <torch/nn/modules/embedding.h>

namespace stormo::train {
namespace {

bool is_sparse_table(const torch::nn::Module& module) {
  if (const auto* e = module.as<torch::nn::Embedding>()) return e->options.sparse();
  if (const auto* e = module.as<torch::nn::EmbeddingBag>()) return e->options.sparse();
  return false;
}

}  // namespace

std::vector<torch::Tensor> sparse_tables(const torch::nn::Module& module) {
  std::vector<torch::Tensor> tables;
  for (const auto& m : module.modules()) {
    if (!is_sparse_table(*m)) continue;
    const torch::Tensor weight = m->named_parameters(/*recurse=*/false)["weight"];
    if (weight.requires_grad()) tables.push_back(weight);
  }
  return tables;
}

}  // namespace stormo::train
