#pragma once

#include <span>
#include <string>

#include <stormo/observe/records.h>

namespace stormo::observe {

/// A line for each split: "test: 20 samples of 2 classes in 20 files; left out: 3 hidden (a/.b)".
std::string data_text(std::span<const DataRecord> data);

/// The same as a JSON list of objects: `split`, `samples`, `classes`, `files`, `left_out`.
std::string data_json(std::span<const DataRecord> data);

/// The confusion matrix as lines for people; of more than twelve classes, where it is to be found.
std::string confusion_text(const EvalRecord& record);

}  // namespace stormo::observe
