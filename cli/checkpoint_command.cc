// `stormo checkpoint`: looks at checkpoints and turns them into files of others and back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include <cli/commands.h>
#include <cli/failure.h>
#include <cli/output_path.h>
#include <cli/plan/output.h>
#include <stormo/base/printable.h>
#include <stormo/base/units.h>
#include <stormo/checkpoint/dcp.h>
#include <stormo/checkpoint/export.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/reader.h>

namespace stormo::cli {
namespace {

using Json = nlohmann::ordered_json;
using checkpoint::Manifest;

constexpr const char* kExamples =
    "  stormo checkpoint inspect runs/mnist                     the newest one in there\n"
    "  stormo checkpoint verify runs/mnist/step-00000938        reads and compares everything\n"
    "  stormo checkpoint export runs/mnist model.safetensors    for Python's safetensors package\n"
    "  stormo checkpoint export runs/mnist best.safetensors --best\n"
    "  stormo checkpoint export runs/mnist dcp --format dcp --optimizer     for dcp.load()\n"
    "  stormo checkpoint import model.safetensors runs/new      then: stormo train ... --resume\n"
    "  stormo checkpoint import dcp runs/new                    a folder that dcp.save() wrote\n"
    "\n"
    "Exit codes: 0 done; 1 a checkpoint is damaged, or a file cannot be written; 2 usage, or "
    "there\n"
    "is no such checkpoint.";

struct CheckpointArguments {
  std::string path;
  std::string target;
  std::string format = "safetensors";
  bool optimizer = false;
  bool best = false;
  bool json = false;
};

std::uint64_t total_bytes(const Manifest& m) {
  std::uint64_t bytes = 0;
  for (const auto& [name, digest] : m.files) bytes += digest.bytes;
  return bytes;
}

Json to_json(const std::string& path, const Manifest& m) {
  Json tensors = Json::array();
  for (const auto& [name, t] : m.tensors) {
    tensors.push_back(
        {{"name", name}, {"dtype", t.dtype}, {"shape", t.shape}, {"boxes", t.boxes.size()}});
  }
  Json files = Json::object();
  for (const auto& [name, digest] : m.files) files[name] = digest.bytes;
  return {{"event", "checkpoint"},
          {"schema", 1},
          {"path", path},
          {"run", m.run.id.empty() ? Json(nullptr) : Json(m.run.id)},
          {"name", m.name},
          {"step", m.step},
          {"samples", m.samples},
          {"stormo_version", m.stormo_version},
          {"torch_version", m.torch_version},
          {"bytes", total_bytes(m)},
          {"files", std::move(files)},
          {"tensors", std::move(tensors)},
          {"state", Json::parse(m.state_json)},
          {"recipe", Json::parse(m.recipe_json)}};
}

void print_text(const std::string& path, const Manifest& m) {
  std::int64_t elements = 0;
  std::size_t width = 0;
  for (const auto& [name, t] : m.tensors) {
    elements += *checkpoint::num_elements(t.shape);
    width = std::max(width, printable_line(name).size());
  }
  fmt::print("{}\n  name        {}\n  run         {}\n  step        {} ({} samples)\n", path,
             m.name.empty() ? "-" : printable_line(m.name), m.run.id.empty() ? "-" : m.run.id,
             m.step, m.samples);
  fmt::print("  written by  stormo {}{}\n", printable_line(m.stormo_version),
             m.torch_version.empty() ? "" : ", libtorch " + printable_line(m.torch_version));
  fmt::print("  files       {}, {}\n  tensors     {}, {} elements\n", m.files.size(),
             format_bytes(total_bytes(m)), m.tensors.size(), elements);
  for (const auto& [name, t] : m.tensors) {
    fmt::print("    {:<{}}  {:<4}  [{}]{}\n", printable_line(name), width, t.dtype,
               fmt::join(t.shape, ", "),
               t.boxes.size() == 1 ? "" : fmt::format("  in {} boxes", t.boxes.size()));
  }
}

Result<std::string> chosen(const CheckpointArguments& a) {
  return a.best ? checkpoint::best_checkpoint(a.path) : checkpoint::find_checkpoint(a.path);
}

Status inspect(const CheckpointArguments& a) {
  STORMO_ASSIGN_OR_RETURN(const std::string path, chosen(a));
  STORMO_ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::open(path));
  if (a.json) {
    print_json(to_json(path, reader.manifest()));
  } else {
    print_text(path, reader.manifest());
  }
  return ok_status();
}

Status verify(const CheckpointArguments& a) {
  STORMO_ASSIGN_OR_RETURN(const std::string path, chosen(a));
  const Result<Manifest> manifest = checkpoint::check_checkpoint(path, true);
  if (a.json) {
    print_json(Json{{"event", "verified"},
                    {"schema", 1},
                    {"path", path},
                    {"ok", manifest.ok()},
                    {"error", manifest.status().message()}});
  } else if (manifest.ok()) {
    fmt::print("{}: whole, {} files, {}\n", path, manifest->files.size(),
               format_bytes(total_bytes(*manifest)));
  }
  return manifest.status();
}

Status report(const CheckpointArguments& a, const char* event, const std::string& path) {
  if (a.json) {
    print_json(Json{{"event", event}, {"schema", 1}, {"path", path}});
  } else {
    fmt::print("{}\n", path);
  }
  return ok_status();
}

Status export_file(const CheckpointArguments& a) {
  STORMO_ASSIGN_OR_RETURN(const std::string path, chosen(a));
  restrict_access_as(path + "/" + Manifest::kFile);
  const auto write = a.format == "dcp" ? checkpoint::export_dcp : checkpoint::export_checkpoint;
  STORMO_RETURN_IF_ERROR(write(path, a.target, a.optimizer));
  return report(a, "exported", a.target);
}

/// What was saved beside the model, such as the state of a scheduler, is not taken: that is said.
Status import_folder(const CheckpointArguments& a) {
  STORMO_ASSIGN_OR_RETURN(const checkpoint::ImportedDcp imported,
                          checkpoint::import_dcp(a.path, a.target));
  if (a.json) {
    print_json(Json{{"event", "imported"},
                    {"schema", 1},
                    {"path", imported.path},
                    {"left_out", imported.left_out}});
    return ok_status();
  }
  fmt::print("{}\n", imported.path);
  for (const std::string& name : imported.left_out) {
    fmt::print(stderr, "stormo: not taken: {}\n", printable_line(name));
  }
  return ok_status();
}

Status import_file(const CheckpointArguments& a) {
  std::error_code ignored;
  if (std::filesystem::is_directory(a.path, ignored)) return import_folder(a);
  STORMO_ASSIGN_OR_RETURN(const std::string path, checkpoint::import_checkpoint(a.path, a.target));
  return report(a, "imported", path);
}

}  // namespace

void add_checkpoint_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("checkpoint", "Inspect, verify, export, import");
  command->footer(kExamples);
  command->require_subcommand(1);
  const auto a = std::make_shared<CheckpointArguments>();
  const auto add = [&](const char* name, const char* what,
                       Status (*run)(const CheckpointArguments&), const char* path) {
    CLI::App* sub = command->add_subcommand(name, what);
    sub->add_option("path", a->path, path)->required();
    sub->add_flag("--json", a->json, "One JSON object on stdout");
    sub->callback([a, run, words = fmt::format("checkpoint {}", name), &invocation] {
      invocation.exit_code = exit_code_of(words, run(*a));
    });
    return sub;
  };
  const char* const any = "A checkpoint, or a folder of them: then the newest";
  CLI::App* shown = add("inspect", "What a checkpoint holds", inspect, any);
  CLI::App* read = add("verify", "Read all of it and compare the checksums", verify, any);
  CLI::App* out = add("export", "Write the model for PyTorch", export_file, any);
  for (CLI::App* sub : {shown, read, out}) {
    sub->add_flag("--best", a->best, "The best one of the folder (checkpoint.best)");
  }
  out->add_option("file", a->target, "The new file or folder")->required();
  out->add_option("--format", a->format,
                  "safetensors: one file; dcp: a folder of torch.distributed.checkpoint")
      ->check(CLI::IsMember({"safetensors", "dcp"}))
      ->capture_default_str();
  out->add_flag("--optimizer", a->optimizer, "The optimizer's state too");
  CLI::App* in = add("import", "Make a checkpoint of step 0 out of PyTorch's", import_file,
                     "A safetensors file with the names of torch.nn.Module.state_dict(), or a "
                     "folder of torch.distributed.checkpoint");
  in->add_option("directory", a->target, "Folder of the checkpoints")->required();
}

}  // namespace stormo::cli
