#include "trireme/verify/tensor_record.h"

#include <torch/nn/module.h>

#include <array>
#include <utility>

#include "trireme/comm/texts.h"
#include "trireme/core/json.h"

namespace trireme::verify {

namespace {

core::Json json_of(const Coverage& coverage) {
  core::Json held = core::Json::array(), cuts = core::Json::array();
  for (const LocalBox& one : coverage.boxes)
    held.push_back({one.box.offset, one.box.shape, one.at, one.copies});
  for (const Cut& cut : coverage.cuts) {
    core::Json sections = core::Json::array();
    for (const Section& one : cut.sections)
      sections.push_back({one.size, one.copies, one.grain, one.fine});
    cuts.push_back({static_cast<int>(cut.axis), cut.dim, sections});
  }
  core::Json positions = core::Json::array();
  for (const Range& one : coverage.positions) positions.push_back({one.begin, one.count});
  return {{"held", held},
          {"first_row", coverage.first_row},
          {"cuts", cuts},
          {"rows", coverage.rows},
          {"positions", positions}};
}

Coverage coverage_of(const core::Json& json) {
  Coverage coverage;
  for (const auto& one : json.at("held"))
    coverage.boxes.push_back({{one[0], one[1]}, one[2], one[3]});
  for (const auto& one : json.at("cuts")) {
    Cut cut{.axis = static_cast<Axis>(one[0].get<int>()), .dim = one[1], .sections = {}};
    for (const auto& section : one[2])
      cut.sections.push_back({section[0], section[1], section[2], section[3]});
    coverage.cuts.push_back(std::move(cut));
  }
  coverage.first_row = json.at("first_row");
  coverage.rows = json.at("rows");
  for (const auto& one : json.at("positions")) coverage.positions.push_back({one[0], one[1]});
  return coverage;
}

std::string describe(const std::vector<TensorRecord>& records) {
  core::Json all = core::Json::array();
  for (const TensorRecord& record : records) {
    core::Json one = {{"stage", static_cast<int>(record.role)},
                      {"name", record.name},
                      {"place", json_of(record.coverage)}};
    if (record.value.defined()) one["shape"] = record.value.sizes().vec();
    all.push_back(std::move(one));
  }
  return all.dump();
}

/// Reads the records that a text describes; their values are one after the other in `flat`.
std::vector<TensorRecord> read(const std::string& text, const at::Tensor& flat) {
  std::vector<TensorRecord> records;
  int64_t begin = 0;
  for (const auto& one : core::parse_json(text, "a rank's notes")) {
    TensorRecord record{static_cast<TensorRole>(one.at("stage").get<int>()),
                        one.at("name"),
                        {},
                        coverage_of(one.at("place"))};
    if (one.contains("shape")) {
      const auto shape = one.at("shape").get<std::vector<int64_t>>();
      const int64_t count = Box{{}, shape}.numel();
      record.value = flat.narrow(0, begin, count).view(shape);
      begin += count;
    }
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

TensorRecord scalar(TensorRole role, const std::string& name, double value) {
  return {role, name, at::full({}, value, at::kDouble), {.boxes = {LocalBox{}}}};
}

std::string_view to_string(TensorRole role) {
  constexpr std::array<std::string_view, 8> kNames = {"input",         "weight",         "buffer",
                                                      "output",        "loss",           "gradient",
                                                      "gradient norm", "evaluation loss"};
  return kNames[static_cast<std::size_t>(role)];
}

std::vector<std::vector<TensorRecord>> gather(const std::vector<TensorRecord>& mine,
                                              const comm::Communicator& world) {
  const auto texts = comm::all_gather_texts(world, describe(mine));
  std::vector<at::Tensor> parts = {at::empty({0}, at::kDouble)};
  for (const TensorRecord& record : mine)
    if (record.value.defined()) parts.push_back(record.value.reshape({-1}).cpu());
  const at::Tensor flat = at::cat(parts);
  at::Tensor counts = at::empty({world.size()}, at::kLong);
  world.all_gather(counts, at::tensor({flat.numel()}, at::kLong)).wait();
  const comm::Rows rows(counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + counts.numel());
  at::Tensor all;
  if (world.rank() == 0) all = at::empty({counts.sum().item<int64_t>()}, at::kDouble);
  world.gather(all, flat, 0, rows).wait();
  std::vector<std::vector<TensorRecord>> records;
  if (world.rank() != 0) return records;
  int64_t begin = 0;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    records.push_back(read(texts[rank], all.narrow(0, begin, rows[rank])));
    begin += rows[rank];
  }
  return records;
}

namespace {

/// Boxes of the positions that a rank has, as the boxes of the whole sequence that these are.
std::vector<LocalBox> placed(const std::vector<LocalBox>& boxes,
                             const std::vector<Range>& positions) {
  std::vector<LocalBox> all;
  for (const LocalBox& one : boxes) {
    int64_t column = 0;
    for (const auto& [begin, count] : positions) {
      LocalBox next = one;
      next.box.offset[1] = begin;
      next.box.shape[1] = count;
      next.at[1] = std::exchange(column, column + count);
      all.push_back(std::move(next));
    }
  }
  return all;
}

}  // namespace

std::vector<LocalBox> boxes_of(const TensorRecord& record, const std::vector<int64_t>& whole,
                               const Coord& coord, const Degrees& degrees) {
  if (!record.coverage.rows) return record.coverage.boxes;
  std::vector<int64_t> block = whole;
  block[0] = record.value.size(0);
  const auto& positions = record.coverage.positions;
  if (!positions.empty()) block[1] = record.value.size(1);
  std::vector<Cut> cuts = record.coverage.cuts;
  for (Cut& cut : cuts)
    if (cut.dim < 0) cut.dim += static_cast<int>(whole.size());
  auto held = Layout(block, cuts).local_boxes(coord, degrees);
  for (LocalBox& one : held) one.box.offset[0] += record.coverage.first_row;
  return positions.empty() ? held : placed(held, positions);
}

}  // namespace trireme::verify
