#include <stormo/model/chain.h>

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ops/arange.h>

#include <stormo/base/check.h>
#include <stormo/tensor/generator.h>
#include <stormo/tensor/memory.h>
#include <stormo/tensor/model_shape.h>

namespace stormo::model {
namespace {

/// Under ValuesLater: bytes of values that may still be kept.
thread_local std::optional<std::int64_t> bytes_kept;

}  // namespace

ValuesLater::ValuesLater(std::int64_t kept) : before_(std::exchange(bytes_kept, kept)) {}
ValuesLater::~ValuesLater() { bytes_kept = before_; }

torch::Tensor Segment::positions(std::int64_t count) const {
  const bool in_parts = ranks_ != nullptr && ranks_->sequence_parallel();
  if (context_ == nullptr && !in_parts) return {};
  const plan::Part part = in_parts ? ranks_->part() : plan::Part();
  const std::int64_t of_group = count * part.parts;
  const torch::Tensor all =
      context_ != nullptr ? context_->positions(of_group) : at::arange(of_group);
  return all.narrow(0, count * part.index, count);
}

void Chain::append(std::string name, std::shared_ptr<Segment> segment) {
  STORMO_CHECK(segment != nullptr, "a chain holds no null segment");
  segments_.push_back(register_module(name, std::move(segment)));
  names_.push_back(std::move(name));
  origins_.emplace_back();
}

Chain::Origin Chain::origin_of(std::function<std::shared_ptr<Segment>()> make) {
  return bytes_kept ? Origin{std::move(make), tensor::generator_state()} : Origin();
}

// What it borrows, an earlier segment has left out. Parts of one storage keep their values.
void Chain::leave_out_values(Origin origin) {
  const auto is_whole_storage = [](const torch::Tensor& p) {
    return p.storage_offset() == 0 && p.storage().nbytes() == p.nbytes();
  };
  const std::vector<torch::Tensor> parameters = segments_.back()->parameters();
  if (origin.make == nullptr) return;
  for (const torch::Tensor& p : parameters) *bytes_kept -= static_cast<std::int64_t>(p.nbytes());
  if (*bytes_kept > 0 || !std::ranges::all_of(parameters, is_whole_storage)) return;
  for (const torch::Tensor& p : parameters) tensor::set_memory(p, false);
  origins_.back() = std::move(origin);
}

bool Chain::lacks_values() const {
  return std::ranges::any_of(origins_, [](const Origin& o) { return o.make != nullptr; });
}

void Chain::make_values(std::size_t segment) {
  STORMO_CHECK(lacks_values(segment), "values are made once");
  const torch::NoGradGuard no_grad;
  const Origin origin = origins_[segment];
  give_memory(segment);
  const tensor::GeneratorAt same_numbers(origin.generator);
  const auto made = origin.make();
  const auto values = made->parameters();
  const auto parameters = segments_[segment]->parameters();
  for (std::size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
}

void Chain::make_values() {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (lacks_values(i)) make_values(i);
  }
}

void Chain::give_memory(std::size_t segment) {
  for (const torch::Tensor& p : segments_[segment]->parameters()) tensor::set_memory(p, true);
  origins_[segment] = {};
}

// Module::to() leaves parameters of that type as they are.
void Chain::to(torch::Dtype type, bool non_blocking) {
  for (torch::Tensor& p : parameters()) p.set_data(tensor::converted(p, type));
  Module::to(type, non_blocking);
}

void Chain::to(torch::Device device, torch::Dtype type, bool non_blocking) {
  to(type, non_blocking);
  Module::to(device, type, non_blocking);
}

torch::Tensor Chain::forward(torch::Tensor x) {
  for (const auto& segment : segments_) x = segment->forward(std::move(x));
  return x;
}

void Chain::compute_with(const tensor::TensorParallelGroup* ranks) {
  for (const auto& segment : segments_) segment->compute_with(ranks);
}

void Chain::compute_positions_with(const tensor::ContextGroup* ranks) {
  for (const auto& segment : segments_) segment->compute_positions_with(ranks);
}

void Chain::compute_places_with(const tensor::Grid* ranks) {
  for (const auto& segment : segments_) segment->compute_places_with(ranks);
}

void parallelize(Chain& model, const tensor::TensorParallelGroup& ranks) {
  STORMO_CHECK(!model.lacks_values(), "a slice is one of values: call make_values() first");
  for (const auto& segment : model.segments()) {
    auto parameters = segment->named_parameters();
    for (const auto& [name, split] : segment->split_form().parameters) {
      parameters[name].set_data(tensor::slice(parameters[name], split, ranks.part()));
    }
  }
  model.compute_with(&ranks);
}

plan::ModelShape Chain::shape() const { return without_unused_forms(split_shape(), {}); }

plan::ModelShape Chain::split_shape() const {
  plan::ModelShape shape;
  std::map<const c10::TensorImpl*, int> numbers;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const SplitForm split = segments_[i]->split_form();
    const ContextForm context = segments_[i]->context_form();
    PlaceForm places = segments_[i]->place_form();
    plan::SegmentShape segment{.name = names_[i],
                               .parameters = tensor::parameter_shapes(*segments_[i], names_[i]),
                               .flops_per_sample = segments_[i]->flops_per_sample(),
                               .borrowed = {},
                               .heads = split.heads,
                               .sums = split.sums,
                               .splits_output = split.splits_output,
                               .positions = context.positions,
                               .keys = context.keys,
                               .windows = std::move(places.windows),
                               .split_windows = split.windows,
                               .state_crossings = split.state_crossings,
                               .norms = std::move(places.norms),
                               .spatial_all_reduce = places.sum};
    for (const auto& [name, how] : split.parameters) {
      const auto found = std::ranges::find(segment.parameters, names_[i] + "." + name,
                                           &plan::ParameterShape::name);
      STORMO_CHECK(found != segment.parameters.end(), "a split parameter is one of the segment");
      found->split = how;
    }
    for (const torch::Tensor& p : segments_[i]->borrowed_parameters()) {
      const auto known = numbers.find(p.unsafeGetTensorImpl());
      if (known != numbers.end()) segment.borrowed.push_back(known->second);
    }
    for (const torch::Tensor& p : segments_[i]->parameters()) {
      const auto next = static_cast<int>(numbers.size());
      numbers[p.unsafeGetTensorImpl()] = next;
    }
    shape.segments.push_back(std::move(segment));
  }
  return shape;
}

}  // namespace stormo::model
