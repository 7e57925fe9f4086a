#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/checkpoint/dcp.h>
#include <stormo/checkpoint/file/staging.h>
#include <stormo/checkpoint/pytorch/dcp_metadata.h>
#include <stormo/checkpoint/pytorch/dcp_names.h>
#include <stormo/checkpoint/pytorch/pickle_writer.h>
#include <stormo/checkpoint/pytorch/torch_archive.h>
#include <stormo/checkpoint/reader.h>

namespace stormo::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kDataFile = "__0_0.distcp";
constexpr std::string_view kOptimizerPrefix = "optimizer.";
constexpr std::array<std::string_view, 6> kSlots = {"exp_avg",    "exp_avg_sq",      "sum",
                                                    "square_avg", "momentum_buffer", "step"};
constexpr std::int64_t kChunkBytes = 1 << 30, kReadBytes = 4 << 20;

/// One setting of an optimizer's param_groups, and how to write its value.
struct Setting {
  const char* name;
  std::function<void(PickleWriter&)> write;
};

/// The settings of the class of torch.optim that is this optimizer; none: PyTorch has none.
std::vector<Setting> settings_of(const Json& o) {
  const std::string kind = o.value("kind", "");
  const auto real = [&o](const char* name, const char* key) {
    return Setting{name, [v = o.value(key, 0.0)](PickleWriter& p) { p.real(v); }};
  };
  const auto constant = [](const char* name, double v) {
    return Setting{name, [v](PickleWriter& p) { p.real(v); }};
  };
  const auto flag = [](const char* name, bool v) {
    return Setting{name, [v](PickleWriter& p) { p.boolean(v); }};
  };
  const auto unset = [](const char* name) {
    return Setting{name, [](PickleWriter& p) { p.none(); }};
  };
  std::vector<Setting> out = {
      real("lr", "lr"),        real("initial_lr", "lr"),      real("weight_decay", "weight_decay"),
      flag("maximize", false), flag("differentiable", false), unset("foreach"),
      unset("fused")};
  const auto add = [&out](std::vector<Setting> more) {
    std::move(more.begin(), more.end(), std::back_inserter(out));
  };
  if (kind == "sgd") {
    add({real("momentum", "momentum"), constant("dampening", 0),
         flag("nesterov", o.value("nesterov", false))});
  } else if (kind == "adam" || kind == "adamw") {
    const double first = o.value("beta1", 0.9), second = o.value("beta2", 0.999);
    add({real("eps", "epsilon"),
         flag("amsgrad", false),
         flag("capturable", false),
         flag("decoupled_weight_decay", kind == "adamw"),
         {"betas", [first, second](PickleWriter& p) {
            p.mark();
            p.real(first);
            p.real(second);
            p.tuple();
          }}});
  } else if (kind == "adagrad") {
    add({real("eps", "epsilon"), constant("lr_decay", 0),
         constant("initial_accumulator_value", 0)});
  } else if (kind == "rmsprop") {
    add({real("momentum", "momentum"), real("alpha", "alpha"), real("eps", "epsilon"),
         flag("centered", false), flag("capturable", false)});
  } else {
    return {};
  }
  return out;
}

/// The optimizer of a recipe, or of a program's options.
Json optimizer_of(const Manifest& manifest) {
  Json recipe = Json::parse(manifest.recipe_json, nullptr, false);
  if (!recipe.contains("optimizer")) {
    const Json state = Json::parse(manifest.state_json, nullptr, false);
    recipe = state.value("options", Json::object());
  }
  return recipe.value("optimizer", Json::object());
}

class DcpWriter {
 public:
  DcpWriter(CheckpointReader& reader, FileWriter& file) : reader_(reader), file_(file) {}

  /// Tensor `saved` of the checkpoint, under these keys.
  Status add_tensor(const std::string& saved, std::vector<std::string> path) {
    const SavedTensor& tensor = reader_.manifest().tensors.at(saved);
    DcpEntry entry{.name = fmt::format("{}", fmt::join(path, ".")),
                   .path = std::move(path),
                   .dtype = tensor.dtype,
                   .shape = tensor.shape};
    const auto width = static_cast<std::int64_t>(*safetensors_dtype_bytes(tensor.dtype));
    const std::int64_t all = *num_elements(tensor.shape), portion = kChunkBytes / width;
    for (std::int64_t begin = 0; begin == 0 || begin < all; begin += portion) {
      std::int64_t first = begin;
      for (const Box& box : boxes_of_range(tensor.shape, begin, std::min(all, begin + portion))) {
        const std::int64_t count = *num_elements(box.sizes);
        STORMO_ASSIGN_OR_RETURN(
            const std::uint64_t bytes,
            write_tensor_archive(file_, tensor.dtype, box.sizes, [&](ZipWriter& zip) {
              return copy(saved, first, first + count, width, zip);
            }));
        entry.chunks.push_back({box, {kDataFile, offset_, bytes}});
        offset_ += bytes;
        first += count;
      }
    }
    entries_.push_back(std::move(entry));
    return {};
  }

  Status add_object(std::vector<std::string> path,
                    const std::function<void(PickleWriter&)>& write) {
    PickleWriter p;
    write(p);
    STORMO_ASSIGN_OR_RETURN(const std::uint64_t bytes, write_archive(file_, std::move(p).finish()));
    entries_.push_back({.name = fmt::format("{}", fmt::join(path, ".")),
                        .path = std::move(path),
                        .place = {kDataFile, offset_, bytes}});
    offset_ += bytes;
    return {};
  }

  Status add_number(std::vector<std::string> path, float value) {
    DcpEntry entry{
        .name = fmt::format("{}", fmt::join(path, ".")), .path = std::move(path), .dtype = "F32"};
    STORMO_ASSIGN_OR_RETURN(const std::uint64_t bytes,
                            write_tensor_archive(file_, "F32", {}, [&](ZipWriter& zip) {
                              return zip.write(&value, sizeof value);
                            }));
    entry.chunks.push_back({{}, {kDataFile, offset_, bytes}});
    offset_ += bytes;
    entries_.push_back(std::move(entry));
    return {};
  }

  const std::vector<DcpEntry>& entries() const { return entries_; }

 private:
  Status copy(const std::string& saved, std::int64_t begin, std::int64_t end, std::int64_t width,
              ZipWriter& zip) {
    const std::int64_t portion = kReadBytes / width;
    std::vector<char> values(static_cast<std::size_t>(std::min(end - begin, portion) * width));
    for (std::int64_t at = begin; at < end; at += portion) {
      const std::int64_t stop = std::min(end, at + portion);
      STORMO_RETURN_IF_ERROR(reader_.read(saved, at, stop, values.data()));
      STORMO_RETURN_IF_ERROR(
          zip.write(values.data(), static_cast<std::size_t>((stop - at) * width)));
    }
    return {};
  }

  CheckpointReader& reader_;
  FileWriter& file_;
  std::uint64_t offset_ = 0;
  std::vector<DcpEntry> entries_;
};

/// The state of the parameters that have some.
Status add_state(const Manifest& manifest, const std::string& kind, DcpWriter& out) {
  const bool counts_here = kind == "adagrad" || kind == "rmsprop";  // in PyTorch, not in Stormo
  for (const auto& [name, tensor] : manifest.tensors) {
    if (name.starts_with(kOptimizerPrefix)) continue;
    bool any = false;
    for (const std::string_view slot : kSlots) {
      const std::string saved = fmt::format("{}{}.{}", kOptimizerPrefix, slot, name);
      if (!manifest.tensors.contains(saved)) continue;
      any = true;
      STORMO_RETURN_IF_ERROR(out.add_tensor(saved, {"optim", "state", name, std::string(slot)}));
    }
    if (!any || !counts_here) continue;
    STORMO_RETURN_IF_ERROR(
        out.add_number({"optim", "state", name, "step"}, static_cast<float>(manifest.step)));
  }
  return {};
}

Status add_optimizer(const Manifest& manifest, DcpWriter& out) {
  const Json optimizer = optimizer_of(manifest);
  const std::string kind = optimizer.value("kind", "");
  const std::vector<Setting> settings = settings_of(optimizer);
  if (settings.empty()) {
    return invalid_argument(
        kind.empty()
            ? "the checkpoint does not say which optimizer its state is of: it was "
              "imported, or a program without options has written it; export it without "
              "--optimizer, or after a run has gone on from it"
            : "no class of PyTorch has the state of '" + kind + "'; export without --optimizer");
  }
  STORMO_RETURN_IF_ERROR(add_state(manifest, kind, out));
  const auto group = [](const char* name) {
    return std::vector<std::string>{"optim", "param_groups", "0", name};
  };
  for (const Setting& s : settings) {
    STORMO_RETURN_IF_ERROR(out.add_object(group(s.name), s.write));
  }
  return out.add_object(group("params"), [&](PickleWriter& p) {
    p.empty_list();
    p.mark();
    for (const auto& [name, tensor] : manifest.tensors) {
      const bool parameter = !name.starts_with(kOptimizerPrefix) && !is_running_statistic(name);
      if (parameter) p.text(name);
    }
    p.append_all();
  });
}

Status write_folder(CheckpointReader& reader, const std::string& folder, bool optimizer) {
  FileWriter file;
  STORMO_RETURN_IF_ERROR(file.create(fs::path(folder) / kDataFile));
  DcpWriter out(reader, file);
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (name.starts_with(kOptimizerPrefix)) continue;
    STORMO_RETURN_IF_ERROR(out.add_tensor(name, {"model", name}));
  }
  if (optimizer) STORMO_RETURN_IF_ERROR(add_optimizer(reader.manifest(), out));
  STORMO_RETURN_IF_ERROR(file.finish().status());
  FileWriter metadata;
  STORMO_RETURN_IF_ERROR(metadata.create(fs::path(folder) / kDcpMetadata));
  STORMO_RETURN_IF_ERROR(metadata.write(format_dcp_metadata(out.entries())));
  return metadata.finish().status();
}

}  // namespace

Status export_dcp(const std::string& path, const std::string& folder, bool optimizer) {
  STORMO_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(path));
  const fs::path target = fs::absolute(folder).lexically_normal();
  const fs::path named = target.has_filename() ? target : target.parent_path();  // "out/"
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(named, ignored))) {
    return invalid_argument(folder + " exists already; remove it, or give another name");
  }
  if (!fs::is_directory(named.parent_path(), ignored)) {
    return invalid_argument(named.parent_path().string() + " is no folder; create it");
  }
  StagingFolder staging;
  STORMO_RETURN_IF_ERROR(staging.create(named.parent_path(), named.filename()));
  STORMO_RETURN_IF_ERROR(write_folder(reader, staging.path(), optimizer));
  return staging.publish(named);
}

}  // namespace stormo::checkpoint
