// Idea: a rank knows from the partition what every rank reads. So nobody asks: one all-to-all
// between two rounds gives each rank what it reads, and in backward one takes the gradients back.
// Autograd runs backward of each rank by itself, in an order that depends on what the rank has. A
// token goes through all exchanges, so their order is the same everywhere.
#include <stormo/tensor/state_exchange.h>

#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stormo/tensor/all_to_all.h>

namespace stormo::tensor {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Messages = std::vector<StateExchange::Message>;

/// What a rank does in an exchange; backward needs it again.
struct Step : torch::CustomClassHolder {
  StateExchange exchange;
  comm::Communicator* ranks = nullptr;  // null: this rank is alone
  int parts = 1;
};

constexpr const char* kStep = "step";

/// Sends tensors[i] to the rank of message i of `to`. Returns those of the messages `from`.
variable_list swap(const variable_list& tensors, const Messages& to, const Messages& from,
                   const Step& step, const at::TensorOptions& type) {
  std::vector<Tensor> packed;
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < step.parts; ++rank) {
    std::vector<Tensor> list = {at::empty({0}, type)};
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (to[i].rank == rank) list.push_back(tensors[i].flatten());
    }
    packed.push_back(at::cat(list));
    counts.push_back(0);
    for (const StateExchange::Message& m : from) {
      if (m.rank == rank) counts.back() += c10::multiply_integers(m.sizes);
    }
  }
  const Tensor arrived = all_to_all(step.ranks, packed, counts, "states of a graph");
  variable_list out(from.size());
  std::int64_t begin = 0;
  for (int rank = 0; rank < step.parts; ++rank) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i].rank != rank) continue;
      const std::int64_t count = c10::multiply_integers(from[i].sizes);
      out[i] = arrived.narrow(0, begin, count).view(from[i].sizes);
      begin += count;
    }
  }
  return out;
}

/// Inputs: the token, then all states of this rank. Outputs: the token, then what it receives.
struct ExchangeStates : torch::autograd::Function<ExchangeStates> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const c10::intrusive_ptr<Step>& step) {
    context->saved_data[kStep] = c10::IValue::make_capsule(step);
    context->saved_data["inputs"] = static_cast<std::int64_t>(inputs.size());
    const Messages& sent = step->exchange.sent;
    variable_list states;
    for (const StateExchange::Message& m : sent) {
      states.push_back(inputs[static_cast<std::size_t>(m.state) + 1]);
    }
    variable_list out =
        swap(states, sent, step->exchange.received, *step, inputs.front().options());
    out.insert(out.begin(), inputs.front().clone());
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto step =
        c10::static_intrusive_pointer_cast<Step>(context->saved_data[kStep].toCapsule());
    const Messages& sent = step->exchange.sent;
    const variable_list back = swap({gradients.begin() + 1, gradients.end()},
                                    step->exchange.received, sent, *step, gradients[0].options());
    variable_list out(static_cast<std::size_t>(context->saved_data["inputs"].toInt()) + 1);
    out.front() = gradients.front();
    for (std::size_t i = 0; i < sent.size(); ++i) {
      Tensor& sum = out[static_cast<std::size_t>(sent[i].state) + 1];
      sum = sum.defined() ? sum + back[i] : back[i];
    }
    return out;
  }
};

/// Inputs: the token, and on one rank the output of the graph. Output: that of the graph.
struct GiveOutput : torch::autograd::Function<GiveOutput> {
  static Tensor forward(AutogradContext* context, at::TensorList inputs,
                        const c10::intrusive_ptr<Step>& step) {
    const bool is_here = inputs.size() > 1;
    context->saved_data["is_here"] = is_here;
    const Messages& sent = step->exchange.sent;
    const variable_list outputs(sent.size(), is_here ? inputs[1] : Tensor());
    const variable_list arrived =
        swap(outputs, sent, step->exchange.received, *step, inputs.front().options());
    return is_here ? inputs[1].detach() : arrived.front();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor& gradient = gradients.front();
    variable_list out = {at::zeros({}, gradient.options())};
    if (context->saved_data["is_here"].toBool()) out.push_back(gradient);
    out.emplace_back();
    return out;
  }
};

c10::intrusive_ptr<Step> step_of(StateExchange exchange, const TensorParallelGroup& ranks) {
  auto step = c10::make_intrusive<Step>();
  step->exchange = std::move(exchange);
  step->ranks = ranks.line().ranks();
  step->parts = ranks.part().parts;
  return step;
}

}  // namespace

// A sum of no elements is 0, and makes the token depend on what has them.
StateExchanges::StateExchanges(const TensorParallelGroup& ranks, const Tensor& x,
                               const std::vector<Tensor>& others, bool trained,
                               torch::ScalarType type)
    : ranks_(ranks), token_(at::zeros({}, at::TensorOptions(type))) {
  if (!trained || !at::GradMode::is_enabled()) return;
  token_.requires_grad_(true);
  if (x.requires_grad()) token_ = token_ + x.flatten().narrow(0, 0, 0).sum().to(type);
  for (const Tensor& parameter : others) {
    if (parameter.requires_grad()) token_ = token_ + parameter.sum().to(type);
  }
}

std::vector<Tensor> StateExchanges::move_states(const std::vector<Tensor>& states,
                                                const StateExchange& what) {
  variable_list inputs = {token_};
  inputs.insert(inputs.end(), states.begin(), states.end());
  // a list of another type would be no list of variables to autograd
  variable_list out = ExchangeStates::apply(at::TensorList(inputs), step_of(what, ranks_));
  token_ = out.front();
  out.erase(out.begin());
  return out;
}

Tensor StateExchanges::give_output(const Tensor& output, const std::vector<std::int64_t>& sizes,
                                   int owner) {
  StateExchange exchange;
  variable_list inputs = {token_};
  if (ranks_.part().index == owner) {
    inputs.push_back(output);
    for (int rank = 0; rank < ranks_.part().parts; ++rank) {
      if (rank != owner) exchange.sent.push_back({.rank = rank, .sizes = sizes});
    }
  } else {
    exchange.received.push_back({.rank = owner, .sizes = sizes});
  }
  return GiveOutput::apply(at::TensorList(inputs), step_of(std::move(exchange), ranks_));
}

}  // namespace stormo::tensor
