// Folders of torch.distributed.checkpoint: pickles, their metadata, archives of torch.save().
#include <cstring>
#include <fstream>
#include <iterator>

#include <stormo/base/check.h>
#include <stormo/base/temporary_folder.h>
#include <stormo/checkpoint/pytorch/dcp_names.h>
#include <stormo/checkpoint/pytorch/pickle_writer.h>
#include <stormo/checkpoint/pytorch/torch_archive.h>

#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

using namespace checkpoint;

void check_metadata(std::string_view text) {
  const auto entries = parse_dcp_metadata(text);
  if (!entries.ok()) return;
  for (const DcpEntry& e : *entries) {
    STORMO_CHECK(!e.path.empty(), "an entry without a path");
    std::int64_t elements = 0;
    for (const DcpChunk& c : e.chunks) {
      STORMO_CHECK(is_inside(c.box, e.shape), "a part leaves its tensor");
      STORMO_CHECK(c.place.file.find('/') == std::string::npos, "a file of another folder");
      elements += *num_elements(c.box.sizes);
    }
    STORMO_CHECK(!e.is_tensor() || elements == *num_elements(e.shape), "not covered");
  }
  const auto names = names_of_dcp(*entries, [&](const DcpEntry&) { return std::string(text); });
  if (!names.ok()) return;
  for (const OptimizerTensor& t : names->optimizer) {
    STORMO_CHECK(t.entry->is_tensor(), "state that is no tensor");
  }
}

void check_archive(std::string_view text) {
  const ReadAt read = [text](std::uint64_t at, void* data, std::size_t bytes) -> Status {
    STORMO_CHECK(at <= text.size() && bytes <= text.size() - at, "read beyond the archive");
    std::memcpy(data, text.data() + at, bytes);
    return {};
  };
  const auto archive = TorchArchive::open(text.size(), read);
  if (!archive.ok()) return;
  (void)Pickle::parse(archive->pickle());
  const auto tensor = archive->tensor();
  if (!tensor.ok()) return;
  const std::size_t bytes = static_cast<std::size_t>(*num_elements(tensor->shape)) *
                            *safetensors_dtype_bytes(tensor->dtype);
  STORMO_CHECK(bytes <= text.size(), "more values than there are bytes");
  std::vector<char> values(bytes);
  (void)read_values(*tensor, read, values.data());
}

std::string some_archive() {
  const auto folder = TemporaryFolder::create("fuzz").take_or_throw();
  const std::string path = folder.path() / "a";
  FileWriter file;
  throw_if_error(file.create(path));
  const auto write = [](ZipWriter& zip) { return zip.write("0123456789abcdef01234567", 24); };
  (void)write_tensor_archive(file, "F32", {2, 3}, write).take_or_throw();
  (void)file.finish().take_or_throw();
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::vector<std::string> seeds() {
  const auto tensor = [](std::vector<std::string> path, const char* name) {
    return DcpEntry{.name = name,
                    .path = std::move(path),
                    .dtype = "F32",
                    .shape = {2, 3},
                    .chunks = {{{{0, 0}, {1, 3}}, {"__0_0.distcp", 0, 900}},
                               {{{1, 0}, {1, 3}}, {"__1_0.distcp", 0, 900}}}};
  };
  const DcpEntry groups{.name = "optim.param_groups.0.lr",
                        .path = {"optim", "param_groups", "0", "lr"},
                        .place = {"__0_0.distcp", 900, 300}};
  // as Python writes it: protocol 4, with a frame, a memo and names from the stack
  using namespace std::string_literals;
  const std::string python =
      "\x80\x04\x95\x20\x00\x00\x00\x00\x00\x00\x00\x8c\x05torch\x94\x8c\x04Size\x94\x93\x94K\x02"
      "M\x00\x01J\xff\xff\xff\xff\x87\x94\x85\x94R\x94}\x94(h\x00]\x94(\x88\x89Ne\x8c\x01xG?"
      "\xf0\x00\x00\x00\x00\x00\x00u\x86."s;
  PickleWriter numbers;
  numbers.empty_list();
  numbers.mark();
  for (int i = 0; i < 3; ++i) numbers.integer(i);
  numbers.append_all();
  return {format_dcp_metadata({tensor({"model", "w"}, "model.w"),
                               tensor({"optim", "state", "w", "exp_avg"}, "optim.state.w.exp_avg"),
                               groups}),
          python, std::move(numbers).finish(), some_archive()};
}

}  // namespace stormo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stormo::fuzz;
  const std::string_view text = as_text(data, size);
  (void)stormo::checkpoint::Pickle::parse(text);
  check_metadata(text);
  check_archive(text);
  return 0;
}
