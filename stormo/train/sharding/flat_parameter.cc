#include <stormo/train/sharding/flat_parameter.h>

#include <algorithm>
#include <numeric>
#include <set>

#include <stormo/plan/flat_buffer.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/dtype.h>
#include <stormo/tensor/memory.h>

namespace stormo::train {
namespace {

void write_scaled(torch::Tensor to, const torch::Tensor& from, double scale) {
  if (scale == 1) {
    to.copy_(from);
  } else if (from.scalar_type() == to.scalar_type()) {
    at::mul_out(to, from, at::scalar_tensor(scale, torch::kFloat64));
  } else {
    to.copy_(from).mul_(scale);
  }
}

}  // namespace

FlatParameter::FlatParameter(std::vector<NamedParameter> parameters, const FlatLayout& layout)
    : layout_(layout),
      parameters_(std::move(parameters)),
      own_type_(parameters_.front().tensor.scalar_type()),
      trainable_(parameters_.front().tensor.requires_grad()) {
  const torch::NoGradGuard no_grad;
  for (const NamedParameter& p : parameters_) {
    if (p.tensor.device() == parameters_.front().tensor.device()) continue;
    throw Error(invalid_argument("parameter '" + p.name + "' is on another device than '" +
                                 parameters_.front().name + "'"));
  }
  lay_out();
  part_ = full_.narrow(0, layout_.rank * part_size(), part_size());
  master_ = mixed() ? torch::zeros({part_size()}, on_device(own_type_)) : torch::Tensor();
  for (const Place& place : places_) {
    if (!mixed()) break;
    master_.narrow(0, place.offset, place.end - place.begin)
        .copy_(parameters_[place.parameter].tensor.reshape(-1).slice(0, place.begin, place.end));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& p = parameters_[i].tensor;
    const torch::Tensor view = full_.narrow(0, slots_[i].offset, slots_[i].count).view(p.sizes());
    view.copy_(p);
    p.mutable_grad().reset();
    p.set_data(view);
  }
  if (!layout_.resident) part_ = part_.clone();
  if (!mixed()) master_ = part_;
  for (const Place& place : places_) {
    pieces_.push_back({parameters_[place.parameter].name,
                       master_.narrow(0, place.offset, place.end - place.begin)});
  }
  narrow_gradients_.resize(pieces_.size());
  seen_version_ = master_._version();
  release();
}

void FlatParameter::lay_out() {
  std::vector<std::int64_t> counts;
  for (const NamedParameter& p : parameters_) counts.push_back(p.tensor.numel());
  const plan::FlatBuffer flat = plan::flat_buffer(
      counts, static_cast<std::int64_t>(torch::elementSize(layout_.compute)), layout_.ranks);
  for (std::size_t i = 0; i < counts.size(); ++i) slots_.push_back({flat.offsets[i], counts[i]});
  elements_ = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  full_ = torch::zeros({flat.elements}, on_device(layout_.compute));
  const std::int64_t first = layout_.rank * part_size(), last = first + part_size();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto [offset, count] = slots_[i];
    const std::int64_t begin = std::max(first, offset), stop = std::min(last, offset + count);
    if (begin < stop) places_.push_back({i, begin - first, begin - offset, stop - offset});
  }
}

Status FlatParameter::check_views() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& p = parameters_[i].tensor;
    const bool is_view = p.storage().is_alias_of(full_.storage()) &&
                         p.storage_offset() == slots_[i].offset &&
                         p.scalar_type() == layout_.compute && p.numel() == slots_[i].count;
    if (!is_view) {
      return invalid_argument(
          "parameter '" + parameters_[i].name +
          "' got other memory after it was sharded (torch::load, to(), set_data), which is not "
          "trained; do that before shard(), or restore by RunCheckpoint");
    }
    if (!trainable_ && p.requires_grad()) {
      return invalid_argument("parameter '" + parameters_[i].name +
                              "' was frozen when it was sharded, and is not any more; make another "
                              "FullyShardedDataParallel when layers are thawed");
    }
  }
  return {};
}

void FlatParameter::prepare_gather() {
  tensor::set_memory(full_, true);
  if (!stale_) return;
  stale_ = false;
  if (master_._version() == seen_version_) return;
  const torch::NoGradGuard no_grad;
  if (mixed()) part_.copy_(master_);
  // What a graph has saved of the old values is no longer what it saved; ranks that own nothing of
  // a parameter do not see that it has changed, so this finds wrong programs on some ranks only.
  for (const NamedParameter& p : parameters_) p.tensor.unsafeGetTensorImpl()->bump_version();
  seen_version_ = master_._version();
}

comm::Buffer FlatParameter::part() const { return tensor::buffer_of(part_); }
comm::Buffer FlatParameter::whole() const { return tensor::buffer_of(full_); }
DType FlatParameter::gathered_type() const {
  return tensor::dtype_of(layout_.compute).take_or_throw();
}
DType FlatParameter::reduced_type() const {
  return tensor::dtype_of(layout_.reduce).take_or_throw();
}

void FlatParameter::release() {
  if (layout_.resident) return;
  tensor::set_memory(full_, false);
  gathered_ = false;
}

void FlatParameter::make_stale() {
  stale_ = true;
  gathered_ = false;
}

torch::Tensor FlatParameter::take_gradients(double scale, std::span<std::uint8_t> present) {
  torch::Tensor flat = torch::empty({full_.numel()}, on_device(layout_.reduce));
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto [offset, count] = slots_[i];
    flat.slice(0, end, offset).zero_();
    end = offset + count;
    torch::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    torch::Tensor view = flat.narrow(0, offset, count).view(parameters_[i].tensor.sizes());
    present[i] = gradient.defined() && scale != 0;
    if (present[i] == 0) {
      view.zero_();
    } else {
      write_scaled(view, gradient.is_sparse() ? gradient.to_dense() : gradient, scale);
    }
    gradient.reset();
  }
  flat.slice(0, end, full_.numel()).zero_();
  return flat;
}

torch::Tensor FlatParameter::reduced_part(const torch::Tensor& gradients) const {
  if (layout_.ranks == 1 || layout_.keep_whole_gradient) {
    return gradients.narrow(0, layout_.rank * part_size(), part_size());
  }
  return torch::empty({part_size()}, on_device(layout_.reduce));
}

void FlatParameter::accept(const torch::Tensor& reduced, std::span<const std::uint8_t> present) {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Place& place = places_[i];
    if (present[place.parameter] == 0) continue;
    // no view: torch::optim::Optimizer::zero_grad() detaches gradients in place
    torch::Tensor piece = reduced.narrow(0, place.offset, place.end - place.begin).variable_data();
    if (!narrow()) piece = piece.to(own_type_);
    torch::Tensor& gradient = gradient_of_piece(i);
    if (gradient.defined()) {
      gradient.add_(piece);
    } else {
      gradient = piece;
    }
  }
}

std::vector<OwnedRange> FlatParameter::owned() const {
  std::vector<OwnedRange> out(parameters_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Place& place = places_[i];
    out[place.parameter] = {place.begin, place.end, pieces_[i].tensor};
  }
  return out;
}

std::vector<TensorGradient> FlatParameter::gradients() const {
  std::vector<TensorGradient> out;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const torch::Tensor& gradient = narrow() ? narrow_gradients_[i] : pieces_[i].tensor.grad();
    if (gradient.defined()) out.push_back({places_[i].parameter, gradient});
  }
  return out;
}

torch::Tensor* FlatParameter::gradient_of(const std::string& parameter) {
  const auto piece = std::ranges::find(pieces_, parameter, &NamedParameter::name);
  if (piece == pieces_.end()) return nullptr;
  const auto i = static_cast<std::size_t>(piece - pieces_.begin());
  torch::Tensor& gradient = gradient_of_piece(i);
  if (!gradient.defined()) {
    gradient =
        torch::zeros(piece->tensor.sizes(), on_device(narrow() ? layout_.reduce : own_type_));
  }
  return &gradient;
}

std::vector<TensorPiece> FlatParameter::state() const {
  std::vector<TensorPiece> out;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Place& place = places_[i];
    out.push_back({pieces_[i].name, parameters_[place.parameter].tensor.sizes().vec(), place.begin,
                   place.end, pieces_[i].tensor});
  }
  return out;
}

void FlatParameter::drop_gradients() {
  for (NamedParameter& p : parameters_) p.tensor.mutable_grad().reset();
  for (NamedParameter& p : pieces_) p.tensor.mutable_grad().reset();
  for (torch::Tensor& gradient : narrow_gradients_) gradient.reset();
}

FlatParameter::Bytes FlatParameter::bytes() const {
  Bytes out;
  std::set<const c10::StorageImpl*> seen;
  const auto count = [&](const torch::Tensor& t, std::int64_t& sum) {
    if (t.defined() && seen.insert(t.storage().unsafeGetStorageImpl()).second) {
      sum += static_cast<std::int64_t>(t.storage().nbytes());
    }
  };
  count(full_, out.parameters);
  count(part_, out.parameters);
  count(master_, out.master);
  for (const NamedParameter& p : parameters_) count(p.tensor.grad(), out.gradients);
  for (const NamedParameter& p : pieces_) count(p.tensor.grad(), out.gradients);
  for (const torch::Tensor& gradient : narrow_gradients_) count(gradient, out.gradients);
  return out;
}

parallel::StateBytesPerParameter FlatParameter::bytes_per_parameter() const {
  const auto size = [](torch::ScalarType t) { return static_cast<double>(torch::elementSize(t)); };
  return {.parameters = size(layout_.compute),
          .gradients = trainable_ ? size(layout_.reduce) : 0,
          .optimizer = mixed() ? size(own_type_) : 0};
}

}  // namespace stormo::train
