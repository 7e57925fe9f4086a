#include <stormo/train/optimizer/lbfgs_optimizer.h>

#include <utility>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <stormo/train/state/checkpoint.h>

namespace stormo::train {

using optim::VectorStep;

namespace {

DType type_of(const torch::Tensor& t) {
  return t.scalar_type() == torch::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

}  // namespace

torch::Tensor lbfgs_tensor(const std::vector<double>& numbers) {
  return at::tensor(numbers, torch::kFloat64);
}

std::vector<double> lbfgs_numbers(const torch::Tensor& saved) {
  const torch::Tensor values = saved.to(torch::kFloat64).contiguous();
  const auto* begin = values.const_data_ptr<double>();
  return {begin, begin + values.numel()};
}

LbfgsOptimizer::LbfgsOptimizer(const OptimizerOptions& options,
                               std::vector<NamedParameter> parameters)
    : Optimizer(std::move(parameters)),
      options_(options),
      method_(options),
      vectors_(parameters_, optim::Lbfgs::vectors(options)) {
  for (const NamedParameter& p : parameters_) {
    const torch::Tensor& t = p.tensor;
    const bool is_known = t.scalar_type() == torch::kFloat32 || t.scalar_type() == torch::kFloat64;
    if (is_known && t.device().is_cpu() && t.is_contiguous()) continue;
    throw Error(invalid_argument("'" + p.name +
                                 "': L-BFGS needs contiguous parameters of float32 or float64 in "
                                 "host memory; use another optimizer"));
  }
}

Status LbfgsOptimizer::step(const StepRate& rate, std::size_t first, std::size_t last) {
  if (first != 0 || last != parameters_.size()) {
    return invalid_argument("L-BFGS updates all parameters at once");
  }
  if (has_converged()) return {};
  vectors_.rate = rate;
  return method_.next(rate.lr, vectors_).status();
}

std::map<std::string, torch::Tensor> LbfgsOptimizer::state() const {
  std::map<std::string, torch::Tensor> out;
  const std::vector<double> numbers = method_.numbers();
  if (numbers.empty()) return out;
  out.emplace(kLbfgsNumbers, lbfgs_tensor(numbers));
  const std::vector<std::string> names = optim::Lbfgs::vector_names(options_);
  for (std::size_t v = 0; v < names.size(); ++v) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      out.emplace(optimizer_key(names[v], parameters_[i].name), vectors_.all()[v][i]);
    }
  }
  return out;
}

Status LbfgsOptimizer::load_state(const std::map<std::string, torch::Tensor>& state) {
  if (state.empty()) return {};
  const auto numbers = state.find(kLbfgsNumbers);
  if (numbers == state.end()) {
    return invalid_argument(
        "the checkpoint holds the state of another optimizer than L-BFGS; resume with the one that "
        "wrote it");
  }
  optim::Lbfgs loaded(options_);
  const std::vector<double> values = lbfgs_numbers(numbers->second);
  STORMO_RETURN_IF_ERROR(loaded.check(values));
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // to, from
  const std::vector<std::string> names = optim::Lbfgs::vector_names(options_);
  for (std::size_t v = 0; v < names.size(); ++v) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::string key = optimizer_key(names[v], parameters_[i].name);
      const torch::Tensor& to = vectors_.all()[v][i];
      const auto from = state.find(key);
      const bool fits = from != state.end() && from->second.sizes() == to.sizes() &&
                        from->second.scalar_type() == to.scalar_type();
      if (!fits) {
        return invalid_argument("optimizer state '" + key +
                                "' is missing, or of another shape or type than the parameter; the "
                                "checkpoint belongs to another model");
      }
      copies.emplace_back(to, from->second);
    }
  }
  for (const auto& [to, from] : copies) to.copy_(from);
  STORMO_RETURN_IF_ERROR(loaded.resume(values, vectors_));
  method_ = std::move(loaded);
  return {};
}

LbfgsOptimizer::Vectors::Vectors(const std::vector<NamedParameter>& parameters, std::size_t count)
    : parameters_(parameters), vectors_(count + 1) {
  for (const NamedParameter& p : parameters) {
    vectors_[optim::kWeights].push_back(p.tensor.detach());
    for (std::size_t v = 1; v <= count; ++v) {
      vectors_[v].push_back(at::zeros_like(p.tensor.detach()));
    }
  }
}

// A parameter without a gradient has the gradient 0.
Result<std::vector<double>> LbfgsOptimizer::Vectors::run(const optim::VectorProgram& program) {
  std::vector<double> numbers;
  for (const VectorStep& step : program) {
    switch (step.kind) {
      case VectorStep::Kind::kGradient:
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
          const torch::Tensor& gradient = parameters_[i].tensor.grad();
          torch::Tensor& to = vectors_[step.to][i];
          if (gradient.defined()) {
            to.copy_(gradient).mul_(rate.gradient_scale);
          } else {
            to.zero_();
          }
        }
        numbers.push_back(rate.loss);
        break;
      case VectorStep::Kind::kCombine:
      case VectorStep::Kind::kSetWeights:
        for (std::size_t i = 0; i < parameters_.size(); ++i) combine(step, i);
        break;
      case VectorStep::Kind::kDot: numbers.push_back(dot(step)); break;
      case VectorStep::Kind::kUpdate: return invalid_argument("L-BFGS has no rule for ranges");
    }
  }
  return numbers;
}

void LbfgsOptimizer::Vectors::combine(const VectorStep& step, std::size_t i) {
  std::vector<optim::VectorRange> terms;
  for (const optim::VectorTerm& term : step.terms) {
    terms.push_back({.factor = term.factor, .data = vectors_[term.vector][i].const_data_ptr()});
  }
  const torch::Tensor& to = vectors_[step.to][i];
  optim::combine(type_of(to), terms, static_cast<std::size_t>(to.numel()), to.data_ptr());
}

double LbfgsOptimizer::Vectors::dot(const VectorStep& step) const {
  double sum = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor &a = vectors_[step.terms[0].vector][i],
                        &b = vectors_[step.terms[1].vector][i];
    sum += optim::dot(type_of(a), a.const_data_ptr(), b.const_data_ptr(),
                      static_cast<std::size_t>(a.numel()));
  }
  return sum;
}

}  // namespace stormo::train
