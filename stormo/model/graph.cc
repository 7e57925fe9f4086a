#include <stormo/model/graph.h>

#include <algorithm>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>

#include <stormo/base/index.h>

namespace stormo::model {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(invalid_argument("graph of segments: " + what));
}

/// In which states cross: that of autocast, else that of the parameters.
torch::ScalarType computed_type(const Graph& graph) {
  if (at::autocast::is_autocast_enabled(at::kCPU)) {
    return at::autocast::get_autocast_dtype(at::kCPU);
  }
  const std::vector<torch::Tensor> parameters = graph.parameters();
  return parameters.empty() ? torch::kFloat32 : parameters.front().scalar_type();
}

}  // namespace

Graph::Graph(std::int64_t elements) : Segment("Graph"), elements_(elements) {}

int Graph::number_of(const std::string& name) const {
  if (name == kInput) return plan::kGraphInput;
  const auto found = std::ranges::find(graph_.segments, name, &plan::GraphSegment::name);
  if (found == graph_.segments.end()) refuse("there is no segment '" + name + "' to read");
  return static_cast<int>(found - graph_.segments.begin());
}

void Graph::add(const std::string& name, std::shared_ptr<Segment> segment,
                const std::vector<std::string>& reads, std::vector<std::int64_t> sizes) {
  const bool is_taken = std::ranges::count(graph_.segments, name, &plan::GraphSegment::name) > 0;
  if (name.empty() || name == kInput || is_taken) refuse("'" + name + "' is no new name");
  if (reads.empty()) refuse("segment '" + name + "' reads nothing");
  if (std::ranges::any_of(sizes, [](std::int64_t n) { return n < 1; })) {
    refuse("segment '" + name + "' has a size that is not positive");
  }
  if (!segment->borrowed_parameters().empty()) {
    refuse("segment '" + name + "' borrows parameters, which another rank may have");
  }
  plan::GraphSegment node{.name = name,
                          .reads = {},
                          .state = c10::multiply_integers(sizes),
                          .flops_per_sample = segment->flops_per_sample()};
  for (const std::string& r : reads) node.reads.push_back(number_of(r));
  graph_.segments.push_back(std::move(node));
  segments_.push_back(register_module(name, std::move(segment)));
  sizes_.push_back(std::move(sizes));
}

void Graph::divide(plan::GraphPartition partition) {
  throw_if_error(check(graph_));
  throw_if_error(check(graph_, partition));
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const std::string who = "segment '" + graph_.segments[i].name + "' has ";
    if (!segments_[i]->buffers().empty()) {
      refuse(who + "buffers, which only one rank would keep; divide a graph without them");
    }
    for (const torch::Tensor& p : segments_[i]->parameters()) {
      if (p.dim() == 0) refuse(who + "a parameter without dimensions; give it one of size 1");
    }
  }
  rounds_ = rounds_of(graph_, partition);
  partition_ = std::move(partition);
  form_ = form();
}

/// Of parameters that are whole now; later each rank may have its own only.
SplitForm Graph::form() const {
  if (partition_.ranks == 1) return {};
  SplitForm out{.parameters = {},
                .sums = {.forward = {}, .backward = {elements_}, .loss = {}},
                .state_crossings = crossings_of(graph_, rounds_)};
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    for (const auto& p : segments_[i]->named_parameters()) {
      plan::Split split{.units = p.value().size(0)};
      split.counts.assign(at(partition_.ranks), 0);
      split.counts[at(partition_.owners[i])] = split.units;
      out.parameters[graph_.segments[i].name + "." + p.key()] = std::move(split);
    }
  }
  return out;
}

bool Graph::is_here(std::size_t segment) const {
  return partition_.owners[segment] == ranks()->part().index;
}

std::vector<std::int64_t> Graph::sizes_of(int segment, std::int64_t samples) const {
  std::vector<std::int64_t> out = sizes_[at(segment)];
  out.insert(out.begin(), samples);
  return out;
}

torch::Tensor Graph::compute(std::size_t segment, const torch::Tensor& x,
                             const std::vector<torch::Tensor>& states) const {
  std::vector<torch::Tensor> read;
  for (const int r : graph_.segments[segment].reads) {
    read.push_back(r == plan::kGraphInput ? x : states[at(r)]);
  }
  torch::Tensor y = segments_[segment]->forward(read.size() == 1 ? read.front() : at::cat(read, 1));
  const std::vector<std::int64_t> stated = sizes_of(static_cast<int>(segment), x.size(0));
  if (y.sizes() != stated) {
    refuse("the output of segment '" + graph_.segments[segment].name + "' is of sizes " +
           c10::str(y.sizes()) + ", not " + c10::str(at::IntArrayRef(stated)));
  }
  return y;
}

torch::Tensor Graph::forward(torch::Tensor x) {
  if (is_divided()) return forward_together(x);
  std::vector<torch::Tensor> states;
  for (std::size_t i = 0; i < segments_.size(); ++i) states.push_back(compute(i, x, states));
  return states.back();
}

/// Of a rank that computes a part of it.
torch::Tensor Graph::forward_together(const torch::Tensor& whole) const {
  if (ranks()->part().parts != partition_.ranks) {
    refuse("it is divided over " + std::to_string(partition_.ranks) + " ranks, but " +
           std::to_string(ranks()->part().parts) + " compute it");
  }
  const tensor::SplitRandom random(ranks());
  const torch::Tensor x = begin_split(whole, ranks());
  const bool trained = x.requires_grad() || std::ranges::any_of(parameters(), [](const auto& p) {
                         return p.requires_grad();
                       });
  const torch::ScalarType type = computed_type(*this);
  tensor::StateExchanges exchanges(*ranks(), x, parameters_of_others(), trained, type);
  std::vector<torch::Tensor> states(segments_.size());
  for (int round = 0; round < rounds_.count(); ++round) {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      if (rounds_.rounds[i] == round && is_here(i)) states[i] = compute(i, x, states).to(type);
    }
    if (round + 1 < rounds_.count()) {
      move_states(rounds_.exchanges[at(round)], x.size(0), states, exchanges);
    }
  }
  const auto last = static_cast<int>(segments_.size()) - 1;
  return exchanges.give_output(states.back(), sizes_of(last, x.size(0)), partition_.owners.back());
}

void Graph::move_states(const std::vector<plan::StateMessage>& messages, std::int64_t samples,
                        std::vector<torch::Tensor>& states,
                        tensor::StateExchanges& exchanges) const {
  const int self = ranks()->part().index;
  tensor::StateExchange what;
  std::vector<torch::Tensor> sent;
  std::vector<int> received;
  int before = -1;
  for (const plan::StateMessage& m : messages) {
    std::vector<std::int64_t> sizes = sizes_of(m.segment, samples);
    if (m.from == self) {
      if (m.segment != before) sent.push_back(states[at(m.segment)]);
      before = m.segment;
      what.sent.push_back(
          {.rank = m.to, .sizes = std::move(sizes), .state = static_cast<int>(sent.size()) - 1});
    } else if (m.to == self) {
      received.push_back(m.segment);
      what.received.push_back({.rank = m.from, .sizes = std::move(sizes)});
    }
  }
  const std::vector<torch::Tensor> arrived = exchanges.move_states(sent, what);
  for (std::size_t i = 0; i < received.size(); ++i) states[at(received[i])] = arrived[i];
}

std::vector<torch::Tensor> Graph::parameters_of_others() const {
  std::vector<torch::Tensor> out;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (is_here(i)) continue;
    const std::vector<torch::Tensor> parameters = segments_[i]->parameters();
    out.insert(out.end(), parameters.begin(), parameters.end());
  }
  return out;
}

std::int64_t Graph::flops_per_sample() const {
  std::int64_t out = 0;
  for (const plan::GraphSegment& s : graph_.segments) out += s.flops_per_sample;
  return out;
}

}  // namespace stormo::model
