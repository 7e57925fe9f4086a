#include <stormo/train/optimizer/optimizer.h>

#include <algorithm>
#include <cmath>

#include <ATen/ops/linalg_vector_norm.h>
#include <torch/nn/modules/embedding.h>

#include <stormo/model/chain.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/optimizer/lbfgs_optimizer.h>
#include <stormo/train/optimizer/tensor_update.h>

namespace stormo::train {
namespace {

bool is_sparse_table(const torch::nn::Module& module) {
  if (const auto* e = module.as<torch::nn::Embedding>()) return e->options.sparse();
  if (const auto* e = module.as<torch::nn::EmbeddingBag>()) return e->options.sparse();
  return false;
}

/// The trained tables with sparse gradients: the weights of torch::nn::Embedding and EmbeddingBag
/// made with sparse(true).
std::vector<torch::Tensor> sparse_tables(const torch::nn::Module& module) {
  std::vector<torch::Tensor> tables;
  for (const auto& m : module.modules()) {
    if (!is_sparse_table(*m)) continue;
    const torch::Tensor weight = m->named_parameters(/*recurse=*/false)["weight"];
    if (weight.requires_grad()) tables.push_back(weight);
  }
  return tables;
}

std::vector<torch::Tensor> hidden_matrices(const torch::nn::Module& module) {
  const auto* const chain = dynamic_cast<const model::Chain*>(&module);
  std::vector<torch::Tensor> matrices;
  if (chain == nullptr) return matrices;
  for (std::size_t s = 1; s + 1 < chain->segments().size(); ++s) {
    for (const torch::Tensor& p : chain->segments()[s]->parameters()) {
      if (p.dim() == 2) matrices.push_back(p);
    }
  }
  return matrices;
}

bool is_one_of(const std::vector<torch::Tensor>& tensors, const torch::Tensor& parameter) {
  return std::ranges::any_of(tensors,
                             [&parameter](const torch::Tensor& t) { return t.is_same(parameter); });
}

// Norm of the norms; undefined gradients count as zero.
double norm_of(const std::vector<NamedParameter>& parameters) {
  std::vector<torch::Tensor> squares;
  for (const NamedParameter& p : parameters) {
    if (!p.tensor.grad().defined()) continue;
    const torch::Tensor grad =
        p.tensor.grad().is_sparse() ? p.tensor.grad().coalesce().values() : p.tensor.grad();
    squares.push_back(at::linalg_vector_norm(grad.detach()).to(torch::kFloat64).square());
  }
  return std::sqrt(sum_of(squares));
}

}  // namespace

std::int64_t bytes_of(const std::vector<NamedParameter>& parameters) {
  std::int64_t bytes = 0;
  for (const NamedParameter& p : parameters) bytes += static_cast<std::int64_t>(p.tensor.nbytes());
  return bytes;
}

std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> out;
  const std::vector<torch::Tensor> tables = sparse_tables(module);
  const std::vector<torch::Tensor> matrices = hidden_matrices(module);
  for (const auto& p : module.named_parameters()) {
    if (!p.value().requires_grad()) continue;
    const bool sparse = is_one_of(tables, p.value());
    out.push_back({p.key(), p.value(), sparse, !sparse && is_one_of(matrices, p.value())});
  }
  return out;
}

Result<double> Optimizer::gradient_norm() { return norm_of(parameters_); }

void Optimizer::zero_grad() {
  for (NamedParameter& p : parameters_) p.tensor.mutable_grad().reset();
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<NamedParameter> parameters) {
  if (options.kind == OptimizerOptions::Kind::kLbfgs) {
    return std::make_unique<LbfgsOptimizer>(options, std::move(parameters));
  }
  return std::make_unique<FusedOptimizer>(options, std::move(parameters));
}

Result<double> clip_coefficient(double norm, double max_norm) {
  if (!(max_norm > 0)) {
    return invalid_argument("cannot clip gradients to the norm " + std::to_string(max_norm) +
                            "; give one greater than 0, or do not clip");
  }
  return std::min(1.0, max_norm / (norm + 1e-6));
}

Result<double> clip_gradients(const std::vector<NamedParameter>& parameters, double max_norm) {
  const double norm = norm_of(parameters);
  STORMO_ASSIGN_OR_RETURN(const double scale, clip_coefficient(norm, max_norm));
  for (const NamedParameter& p : parameters) {
    if (scale < 1 && p.tensor.grad().defined()) p.tensor.grad().detach().mul_(scale);
  }
  return norm;
}

}  // namespace stormo::train
