// `stormo data`: small data sets for a first run, without a network.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <system_error>

#include <cli/commands.h>
#include <cli/data/sets.h>
#include <cli/failure.h>
#include <cli/flag_values.h>
#include <stormo/base/replace_file.h>

namespace stormo::cli {
namespace {

namespace fs = std::filesystem;

struct FetchArguments {
  std::string name;
  std::string folder;
};

int list_sets() {
  for (const DataSet& set : data_sets()) fmt::print("{:<10} {}\n", set.name, set.what);
  return kExitOk;
}

/// All of it or nothing: a folder beside it takes its place when it is whole.
Status write_set(const DataSet& set, const fs::path& folder) {
  const fs::path whole = folder.string() + ".new";
  std::error_code failed;
  fs::remove_all(whole, failed);
  fs::create_directories(whole, failed);
  if (failed) return io_error("cannot create '" + whole.string() + "'");
  for (const DataFile& file : set.make()) {
    const std::string path = (whole / file.name).string();
    STORMO_RETURN_IF_ERROR(replace_file(path, [&file](std::ostream& out) { out << file.bytes; }));
  }
  fs::rename(whole, folder, failed);
  return failed ? io_error("cannot create '" + folder.string() + "'") : Status();
}

Status fetch(const FetchArguments& a) {
  Wrong wrong;
  const DataSet* set = find_row(data_sets(), a.name, "name", wrong);
  STORMO_RETURN_IF_ERROR(as_status(wrong));
  const std::string folder = a.folder.empty() ? "data/" + std::string(set->name) : a.folder;
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(folder, ignored))) {
    return invalid_argument(
        fmt::format("'{}' is there already; remove it, or name another folder by --to", folder));
  }
  STORMO_RETURN_IF_ERROR(write_set(*set, folder));
  fmt::print("{}: {}\ntrain with it by: {}\n", folder, set->what,
             fmt::format(fmt::runtime(set->command), folder));
  return {};
}

}  // namespace

void add_data_command(CLI::App& app, Invocation& invocation) {
  CLI::App* data = app.add_subcommand("data", "Make a small data set for a first run");
  data->footer(
      "  stormo data list\n"
      "  stormo data fetch digits              into data/digits; needs no network\n"
      "  stormo data fetch text --to ~/text");
  data->require_subcommand(1);
  data->add_subcommand("list", "The data sets that can be made")->callback([&invocation] {
    invocation.exit_code = list_sets();
  });
  auto a = std::make_shared<FetchArguments>();
  CLI::App* fetching = data->add_subcommand("fetch", "Make one of them, always the same");
  fetching->add_option("name", a->name, "Name from 'stormo data list'")->required();
  fetching->add_option("--to", a->folder, "Folder; default: data/NAME");
  fetching->callback(
      [&invocation, a] { invocation.exit_code = exit_code_of("data fetch", fetch(*a)); });
}

}  // namespace stormo::cli
