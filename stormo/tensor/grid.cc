// Maps of places of which several ranks have parts.
//
// Idea: of each layer a rank knows the rows that it has and those that every rank reads, from the
// size of the map alone. So nobody asks: one all-to-all along the rows, and one along the columns
// of the rows that arrived, give each rank what it reads, with the corners.
#include <stormo/tensor/grid.h>

#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stormo/tensor/all_to_all.h>
#include <stormo/tensor/bridge.h>

namespace stormo::tensor {
namespace {

using plan::Share;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kRows = 2, kColumns = 3;  // dimensions of a map

/// One dimension of a map, and what the ranks of a line have and read of it.
class Cut {
 public:
  Cut(const plan::Window& window, std::int64_t dim, const Line& line)
      : dim_(dim),
        ranks_(line.ranks()),
        own_(line.share(dim == kRows ? window.height : window.width)) {
    const std::int64_t extent = dim == kRows ? window.height : window.width;
    const auto [parts, index] = std::pair(line.part().parts, line.part().index);
    read_ = rows_read(window, extent, parts, index);
    // with padding, as the layer reads it
    const Share out = line.share(rows_out(window, extent));
    begin_ = out.begin * window.stride - window.padding;
    end_ = (out.end - 1) * window.stride - window.padding + window.kernel;
    for (int i = 0; i < parts; ++i) {
      const Share theirs = plan::share(extent, parts, i);
      const Share read_there = rows_read(window, extent, parts, i);
      send_.push_back(i == index ? Share{} : common(own_, read_there));
      receive_.push_back(i == index ? Share{} : common(theirs, read_));
      crosses_ = crosses_ || common(theirs, read_there).size() != read_there.size();
    }
  }

  /// Rows that this rank has.
  const Share& own() const { return own_; }
  /// Rows of the map that it reads.
  const Share& read() const { return read_; }
  /// How many rows a layer without padding computes from.
  std::int64_t padded() const { return end_ - begin_; }
  /// Where a row of the map is among them.
  std::int64_t place(std::int64_t row) const { return row - begin_; }
  /// Whether it reads all that it has.
  bool keeps_all() const { return kept().size() == own_.size(); }

  /// What lies outside of the map, in what a layer computes from.
  void zero_edges(const Tensor& padded_map) const {
    const std::int64_t first = place(read_.begin), end = place(read_.end);
    padded_map.narrow(dim_, 0, first).zero_();
    padded_map.narrow(dim_, end, padded() - end).zero_();
  }

  /// Rows that this rank has and reads: from `owned`, which begins with row own().begin, to `out`,
  /// which begins with row read().begin.
  void copy_kept(const Tensor& owned, const Tensor& out) const {
    kept_of_read(out).copy_(kept_of_own(owned));
  }

  /// Gives each rank the rows that it reads and others have; tensors as in copy_kept().
  void exchange(const Tensor& owned, const Tensor& out) const {
    if (!crosses_) return;
    const Tensor arrived = swap(owned, own_.begin, send_, receive_, out);
    unpack(arrived, receive_, out, read_.begin,
           [](const Tensor& to, const Tensor& from) { to.copy_(from); });
  }

  /// The reverse of both, of the gradients of what was read: in memory of its own the sums of those
  /// of the rows that this rank has.
  Tensor gradients_of_own(const Tensor& out) const {
    std::vector<std::int64_t> sizes = out.sizes().vec();
    sizes[static_cast<std::size_t>(dim_)] = own_.size();
    const Tensor owned =
        keeps_all() ? at::empty(sizes, out.options()) : at::zeros(sizes, out.options());
    kept_of_own(owned).copy_(kept_of_read(out));
    if (!crosses_) return owned;
    const Tensor arrived = swap(out, read_.begin, receive_, send_, owned);
    unpack(arrived, send_, owned, own_.begin,
           [](const Tensor& to, const Tensor& from) { to.add_(from); });
    return owned;
  }

 private:
  Share kept() const { return common(own_, read_); }
  Tensor kept_of_own(const Tensor& owned) const { return rows_of(owned, own_.begin, kept()); }
  Tensor kept_of_read(const Tensor& out) const { return rows_of(out, read_.begin, kept()); }

  /// Of `x`, which begins with row `first`.
  Tensor rows_of(const Tensor& x, std::int64_t first, const Share& rows) const {
    return x.narrow(dim_, rows.size() == 0 ? 0 : rows.begin - first, rows.size());
  }

  /// Rows `send` of `x`, which begins with row `first`, to each rank; what arrives is as `like`.
  Tensor swap(const Tensor& x, std::int64_t first, const std::vector<Share>& send,
              const std::vector<Share>& receive, const Tensor& like) const {
    std::vector<Tensor> to;
    std::vector<std::int64_t> from;
    for (const Share& s : send) to.push_back(rows_of(x, first, s).flatten());
    for (const Share& s : receive) from.push_back(like.numel() / like.size(dim_) * s.size());
    return all_to_all(ranks_, to, from, "halo of a map");
  }

  /// Puts what arrived into rows of `to`, which begins with row `first`.
  template <class Put>
  void unpack(const Tensor& arrived, const std::vector<Share>& rows, const Tensor& to,
              std::int64_t first, const Put& put) const {
    std::int64_t at = 0;
    for (const Share& s : rows) {
      if (s.size() == 0) continue;
      const Tensor there = rows_of(to, first, s);
      put(there, arrived.narrow(0, at, there.numel()).view(there.sizes()));
      at += there.numel();
    }
  }

  std::int64_t dim_;
  comm::Communicator* ranks_;  // null: this rank is alone
  Share own_, read_;
  std::int64_t begin_ = 0, end_ = 0;
  std::vector<Share> send_, receive_;  // by rank: its rows of mine, and my rows of its
  bool crosses_ = false;               // some rank of the line reads what it does not have
};

/// Both dimensions of a map that is read; backward needs them again.
struct Reading : torch::CustomClassHolder {
  Reading(const plan::Window& window, const Line& row_line, const Line& column_line)
      : rows(window, kRows, row_line), columns(window, kColumns, column_line) {}

  Cut rows, columns;
};

struct ReadPlaces : torch::autograd::Function<ReadPlaces> {
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const c10::intrusive_ptr<Reading>& by) {
    context->saved_data["by"] = c10::IValue::make_capsule(by);
    const Cut &rows = by->rows, &columns = by->columns;
    const Tensor out =
        at::empty({x.size(0), x.size(1), rows.padded(), columns.padded()}, x.options());
    rows.zero_edges(out);
    columns.zero_edges(out);
    // all rows that are read, of the columns that are here
    const Tensor read = out.narrow(kRows, rows.place(rows.read().begin), rows.read().size());
    const Tensor here =
        columns.keeps_all()
            ? read.narrow(kColumns, columns.place(columns.own().begin), columns.own().size())
            : at::empty({x.size(0), x.size(1), rows.read().size(), columns.own().size()},
                        x.options());
    rows.copy_kept(x, here);
    rows.exchange(x, here);
    const Tensor all =
        read.narrow(kColumns, columns.place(columns.read().begin), columns.read().size());
    if (!columns.keeps_all()) columns.copy_kept(here, all);
    columns.exchange(here, all);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto by =
        c10::static_intrusive_pointer_cast<Reading>(context->saved_data["by"].toCapsule());
    const Cut &rows = by->rows, &columns = by->columns;
    const Tensor all =
        gradients.front()
            .narrow(kRows, rows.place(rows.read().begin), rows.read().size())
            .narrow(kColumns, columns.place(columns.read().begin), columns.read().size());
    return {rows.gradients_of_own(columns.gradients_of_own(all)), Tensor()};
  }
};

struct SumOverPlaces : torch::autograd::Function<SumOverPlaces> {
  static Tensor forward(AutogradContext* context, const Tensor& x, std::int64_t grid) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): arguments are tensors and plain values
    const Grid& all = *reinterpret_cast<const Grid*>(grid);
    context->saved_data["ranks"] = std::int64_t{all.size()};
    const Tensor sum = x.detach();
    sum.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
    if (all.all() != nullptr) {
      throw_if_error(
          all.all()->all_reduce(buffer_of(sum), comm::ReduceOp::kSum).within("sum over places"));
    }
    return sum;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients.front() * context->saved_data["ranks"].toInt(), Tensor()};
  }
};

}  // namespace

Line Line::alone(int parts) {
  Line out;
  out.part_ = {parts - 1, parts};
  return out;
}

Tensor Grid::take(const Tensor& images) const {
  const auto too_small = [&](std::int64_t dim, const Line& line) {
    return images.size(dim) < line.part().parts;
  };
  if (images.dim() != 4 || too_small(kRows, rows_) || too_small(kColumns, columns_)) {
    throw Error(invalid_argument(
        "spatial: samples of a batch of sizes " + c10::str(images.sizes()) +
        " have no places for each of " + std::to_string(rows_.part().parts) + " x " +
        std::to_string(columns_.part().parts) + " ranks; images are [channels, height, width]"));
  }
  const Share rows = rows_.share(images.size(kRows)),
              columns = columns_.share(images.size(kColumns));
  return images.narrow(kRows, rows.begin, rows.size())
      .narrow(kColumns, columns.begin, columns.size())
      .clone(at::MemoryFormat::Contiguous);
}

Tensor halo_exchange(const Tensor& x, const plan::Window& window, const Line& rows,
                     const Line& columns) {
  const auto by = c10::make_intrusive<Reading>(window, rows, columns);
  if (x.dim() != 4 || x.size(1) != window.channels || x.size(kRows) != by->rows.own().size() ||
      x.size(kColumns) != by->columns.own().size()) {
    throw Error(invalid_argument("a rank's part of a map is of sizes " + c10::str(x.sizes()) +
                                 ", and should be " + std::to_string(by->rows.own().size()) +
                                 " x " + std::to_string(by->columns.own().size()) + " places of " +
                                 std::to_string(window.channels) +
                                 " channels; give the model the size of the images"));
  }
  return ReadPlaces::apply(x, by);
}

Tensor sum_over_places(const Tensor& x, const Grid& grid) {
  return SumOverPlaces::apply(x, reinterpret_cast<std::int64_t>(&grid));
}

}  // namespace stormo::tensor
