#include "data/shards/row_spool.h"

#include <cstring>

namespace specdec::data {

namespace {

template <class T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class Range>
void put_range(std::string& out, const Range& values) {
  put(out, static_cast<uint64_t>(values.size()));
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
}

// Reads values from the bytes of one row. The spool is written and read by the same process, so an impossible size
// means that another program changed the file.
struct Cursor {
  std::string_view bytes;
  void take(void* to, size_t n) {
    if (n > bytes.size()) throw Error(ErrorKind::kIo, "the row spool was changed while it was in use");
    std::memcpy(to, bytes.data(), n);
    bytes.remove_prefix(n);
  }
  template <class T>
  void get(T& value) {
    take(&value, sizeof value);
  }
  template <class Range>
  void get_range(Range& values) {
    uint64_t n = 0;
    get(n);
    if (n > bytes.size() / sizeof(values[0]))
      throw Error(ErrorKind::kIo, "the row spool was changed while it was in use");
    values.resize(n);
    take(values.data(), n * sizeof(values[0]));
  }
};

}  // namespace

void RowSpool::add(const TokenRow& row) {
  std::string bytes;
  for (const std::string* s : {&row.id, &row.conversation, &row.domain}) put_range(bytes, *s);
  put(bytes, row.prompt_tokens);
  put(bytes, row.has_sampling);
  put(bytes, row.sampling.temperature);
  put(bytes, row.sampling.top_k);
  put(bytes, row.sampling.top_p);
  put(bytes, row.sampling.min_p);
  put_range(bytes, row.tokens);
  put_range(bytes, row.loss_mask);
  put_range(bytes, row.calls.empty() ? std::string() : canonical_json(to_json(row.calls)));
  writer_->write(bytes);
  offsets_.push_back(offsets_.back() + bytes.size());
}

void RowSpool::finish() {
  writer_->finish();
  reader_.emplace(path_, ErrorKind::kIo);
}

TokenRow RowSpool::read(size_t index) const {
  std::string bytes(offsets_[index + 1] - offsets_[index], '\0');
  reader_->read(offsets_[index], std::as_writable_bytes(std::span(bytes)));
  Cursor in{bytes};
  TokenRow row;
  for (std::string* s : {&row.id, &row.conversation, &row.domain}) in.get_range(*s);
  in.get(row.prompt_tokens);
  in.get(row.has_sampling);
  in.get(row.sampling.temperature);
  in.get(row.sampling.top_k);
  in.get(row.sampling.top_p);
  in.get(row.sampling.min_p);
  in.get_range(row.tokens);
  in.get_range(row.loss_mask);
  std::string calls;
  in.get_range(calls);
  if (!calls.empty())
    row.calls = turn_calls_from_json({{"calls", parse_json(calls, path_.string())}},
                                     static_cast<int64_t>(row.tokens.size()), path_.string());
  return row;
}

void RowSpool::remove() {
  reader_.reset();
  writer_.reset();
  fs::remove(path_);
}

}  // namespace specdec::data
