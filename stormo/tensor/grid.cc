// Maps of places of which several ranks have parts.
//
// Idea: of each layer a rank knows the rows that it has and those that every rank reads, from the
// size of the map alone. So nobody asks: one all-to-all along the rows, and one along the columns
// of the rows that arrived, give each rank what it reads, with the corners.
#include <stormo/tensor/grid.h>

#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

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
      : window_(window),
        dim_(dim),
        extent_(dim == kRows ? window.height : window.width),
        line_(line),
        own_(line.share(extent_)),
        read_(read_by(line.part().index)) {
    // with padding, as the layer reads it
    const Share out = line.share(rows_out(window, extent_));
    begin_ = out.begin * window.stride - window.padding;
    end_ = (out.end - 1) * window.stride - window.padding + window.kernel;
  }

  /// Rows that this rank has.
  const Share& own() const { return own_; }
  /// Rows of the map that it reads.
  const Share& read() const { return read_; }
  /// What it has and reads; may be empty.
  Share kept() const { return common(own_, read_); }
  /// How many rows a layer without padding computes from.
  std::int64_t padded() const { return end_ - begin_; }
  /// Where a row of the map is among them.
  std::int64_t place(std::int64_t row) const { return row - begin_; }

  /// What lies outside of the map, in what a layer computes from.
  void zero_edges(const Tensor& padded_map) const {
    const std::int64_t first = place(read_.begin), end = place(read_.end);
    padded_map.narrow(dim_, 0, first).zero_();
    padded_map.narrow(dim_, end, padded() - end).zero_();
  }

  /// Gives each rank the rows that it reads and others have: from `owned`, which begins with row
  /// own().begin, to `out`, which begins with row read().begin.
  void exchange(const Tensor& owned, const Tensor& out) const {
    std::vector<Share> send, receive;
    if (!find(send, receive)) return;
    const Tensor arrived = all_to_all(owned, own_.begin, send, receive, out);
    unpack(arrived, receive, out, [](const Tensor& to, const Tensor& from) { to.copy_(from); });
  }
  /// The reverse, of gradients: those of rows that others have go there, and are added to what
  /// `owned` has.
  void add_back(const Tensor& out, const Tensor& owned) const {
    std::vector<Share> send, receive;
    if (!find(receive, send)) return;
    const Tensor arrived = all_to_all(out, read_.begin, send, receive, owned);
    unpack(
        arrived, receive, owned, [](const Tensor& to, const Tensor& from) { to.add_(from); },
        own_.begin);
  }

 private:
  Share read_by(int index) const { return rows_read(window_, extent_, line_.part().parts, index); }

  /// By rank: the rows of this rank that it reads, and its rows that this rank reads. False where
  /// no rank of the line needs anything.
  bool find(std::vector<Share>& to, std::vector<Share>& from) const {
    const int parts = line_.part().parts;
    bool any = false;
    for (int i = 0; i < parts; ++i) {
      const bool self = i == line_.part().index;
      to.push_back(self ? Share{} : common(own_, read_by(i)));
      from.push_back(self ? Share{} : common(plan::share(extent_, parts, i), read_));
      for (int j = 0; j < parts; ++j) {
        any = any || (i != j && common(plan::share(extent_, parts, i), read_by(j)).size() > 0);
      }
    }
    return any;
  }

  /// Rows `send` of `x`, which begins with row `first`; flat, one rank's behind the other's.
  Tensor all_to_all(const Tensor& x, std::int64_t first, const std::vector<Share>& send,
                    const std::vector<Share>& receive, const Tensor& like) const {
    const auto counts = [this](const Tensor& of, const std::vector<Share>& rows) {
      std::vector<std::int64_t> out;
      for (const Share& s : rows) out.push_back(of.numel() / of.size(dim_) * s.size());
      return out;
    };
    const std::vector<std::int64_t> in_counts = counts(x, send), out_counts = counts(like, receive);
    std::vector<Tensor> packed;
    for (const Share& s : send) {
      packed.push_back(x.narrow(dim_, s.size() == 0 ? 0 : s.begin - first, s.size()).flatten());
    }
    const Tensor in = at::cat(packed);
    std::int64_t arriving = 0;
    for (const std::int64_t n : out_counts) arriving += n;
    if (line_.ranks() == nullptr) return at::zeros({arriving}, x.options());
    const Tensor out = at::empty({arriving}, x.options());
    throw_if_error(line_.ranks()
                       ->all_to_all(buffer_of(in), in_counts, buffer_of(out), out_counts)
                       .within("halo of a map"));
    return out;
  }

  template <class Put>
  void unpack(const Tensor& arrived, const std::vector<Share>& rows, const Tensor& to,
              const Put& put) const {
    unpack(arrived, rows, to, put, read_.begin);
  }
  template <class Put>
  void unpack(const Tensor& arrived, const std::vector<Share>& rows, const Tensor& to,
              const Put& put, std::int64_t first) const {
    std::int64_t at = 0;
    for (const Share& s : rows) {
      if (s.size() == 0) continue;
      const Tensor there = to.narrow(dim_, s.begin - first, s.size());
      put(there, arrived.narrow(0, at, there.numel()).view(there.sizes()));
      at += there.numel();
    }
  }

  const plan::Window& window_;
  std::int64_t dim_, extent_;
  const Line& line_;
  Share own_, read_;
  std::int64_t begin_ = 0, end_ = 0;
};

/// The places of a call; the lines and the window travel by address.
struct Reading : torch::CustomClassHolder {
  Reading(const plan::Window& window_, const Line& rows_, const Line& columns_)
      : window(window_), row_line(rows_), column_line(columns_) {}

  plan::Window window;
  Line row_line, column_line;
  Cut rows{window, kRows, row_line};
  Cut columns{window, kColumns, column_line};
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
    const Share kept_rows = rows.kept(), kept_columns = columns.kept();
    // all rows that are read, of the columns that are here
    const Tensor read = out.narrow(kRows, rows.place(rows.read().begin), rows.read().size());
    Tensor here = read;
    const bool all_columns_stay = kept_columns.size() == columns.own().size();
    if (all_columns_stay) {
      here = read.narrow(kColumns, columns.place(columns.own().begin), columns.own().size());
    } else {
      here =
          at::empty({x.size(0), x.size(1), rows.read().size(), columns.own().size()}, x.options());
    }
    if (kept_rows.size() > 0) {
      here.narrow(kRows, kept_rows.begin - rows.read().begin, kept_rows.size())
          .copy_(x.narrow(kRows, kept_rows.begin - rows.own().begin, kept_rows.size()));
    }
    rows.exchange(x, here);
    const Tensor all =
        read.narrow(kColumns, columns.place(columns.read().begin), columns.read().size());
    if (!all_columns_stay && kept_columns.size() > 0) {
      all.narrow(kColumns, kept_columns.begin - columns.read().begin, kept_columns.size())
          .copy_(
              here.narrow(kColumns, kept_columns.begin - columns.own().begin, kept_columns.size()));
    }
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
    const Tensor here = own_lines(all, columns, kColumns);
    columns.add_back(all, here);
    const Tensor x = own_lines(here, rows, kRows);
    rows.add_back(here, x);
    return {x, Tensor()};
  }

  /// Of what this rank reads what it has, in memory of its own; zeros where it does not read it.
  static Tensor own_lines(const Tensor& read, const Cut& cut, std::int64_t dim) {
    std::vector<std::int64_t> sizes = read.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = cut.own().size();
    const Share kept = cut.kept();
    const bool all = kept.size() == cut.own().size();
    const Tensor out = all ? at::empty(sizes, read.options()) : at::zeros(sizes, read.options());
    if (kept.size() > 0) {
      out.narrow(dim, kept.begin - cut.own().begin, kept.size())
          .copy_(read.narrow(dim, kept.begin - cut.read().begin, kept.size()));
    }
    return out;
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
      .narrow(kColumns, columns.begin, columns.size());
}

Tensor read_places(const Tensor& x, const plan::Window& window, const Line& rows,
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
