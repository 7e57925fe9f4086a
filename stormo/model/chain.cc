#include <stormo/model/chain.h>

#include <utility>

#include <stormo/base/check.h>

namespace stormo::model {

void Chain::append(std::string name, std::shared_ptr<Segment> segment) {
  STORMO_CHECK(segment != nullptr, "a chain holds no null segment");
  segments_.push_back(register_module(name, std::move(segment)));
  names_.push_back(std::move(name));
}

torch::Tensor Chain::forward(torch::Tensor x) {
  for (const auto& segment : segments_) x = segment->forward(std::move(x));
  return x;
}

plan::ModelShape Chain::shape() const {
  plan::ModelShape shape;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    std::int64_t elements = 0;
    for (const auto& parameter : segments_[i]->parameters()) elements += parameter.numel();
    shape.segments.push_back({.name = names_[i],
                              .num_parameters = elements,
                              .flops_per_sample = segments_[i]->flops_per_sample()});
  }
  return shape;
}

}  // namespace stormo::model
