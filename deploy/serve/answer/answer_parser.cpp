#include "deploy/serve/answer/answer_parser.h"

#include <optional>
#include <utility>

#include "deploy/serve/answer/call_reader.h"

namespace specdec::deploy {

namespace {

constexpr size_t kCallBytes = 128;  // estimated bytes of a call's JSON in a reply, without name and arguments

// Returns the texts that mark the beginning of a call.
std::vector<std::string> call_markers(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return {"<tool_call>"};
    case ToolFormat::kQwen3Coder:
      return {"<tool_call>", "<function="};
    case ToolFormat::kLlama3Json:
      return {"<|python_tag|>"};
    case ToolFormat::kMistral:
      return {"[TOOL_CALLS]"};
    case ToolFormat::kNone:
      break;
  }
  return {};
}

}  // namespace

void AnswerPiece::add_call(CallPiece piece) {
  if (calls.empty() || calls.back().index != piece.index) {
    calls.push_back(std::move(piece));
    return;
  }
  calls.back().name += piece.name;
  calls.back().arguments += piece.arguments;
}

void AnswerPiece::append(const AnswerPiece& next) {
  content += next.content;
  reasoning += next.reasoning;
  for (const CallPiece& call : next.calls) add_call(call);
}

size_t AnswerPiece::bytes() const {
  size_t sum = content.size() + reasoning.size();
  for (const CallPiece& call : calls) sum += kCallBytes + call.name.size() + call.arguments.size();
  return sum;
}

bool ends_with_marker(std::string_view prompt, const std::string& marker) {
  while (!prompt.empty() && is_json_space(prompt.back())) prompt.remove_suffix(1);
  return !marker.empty() && prompt.ends_with(marker);
}

ThoughtSplitter::ThoughtSplitter(const ReasoningMarkers& markers, bool begun)
    : begin_(markers.begin),
      end_(markers.begin.empty() ? std::vector<std::string>() : std::vector<std::string>{markers.end}),
      place_(markers.begin.empty() ? Place::kAfter
             : begun               ? Place::kThoughts
                                   : Place::kStart) {}

std::string ThoughtSplitter::push(char c) {
  if (place_ == Place::kThoughts) {
    if (!end_.matched()) return end_.push({&c, 1});
    if (c != '\n') place_ = Place::kAfter;
    return {};
  }
  if (tag_.empty() && is_json_space(c)) return {};
  tag_ += c;
  if (tag_ == begin_)
    place_ = Place::kThoughts;
  else if (!begin_.starts_with(tag_))
    place_ = Place::kAfter;
  return {};
}

class AnswerParser::Machine {
 public:
  explicit Machine(std::shared_ptr<const AnswerFormat> format)
      : format_(std::move(format)),
        markers_(call_markers(format_->tools)),
        thoughts_(format_->reasoning, format_->begins_reasoning) {
    if (format_->begins_in_call)
      begin_call_start();
    else
      phase_ = thoughts_.place() == ThoughtSplitter::Place::kAfter ? Phase::kBody : Phase::kThoughts;
  }

  AnswerPiece push(std::string_view text) {
    for (const char c : text) {
      const size_t before = out_.content.size();
      ++read_;
      step(c);
      note_content(out_.content.size() - before);
    }
    return std::exchange(out_, {});
  }

  AnswerPiece finish() {
    const size_t before = out_.content.size();
    if (phase_ == Phase::kThoughts) add_reasoning(thoughts_.finish());
    if (phase_ == Phase::kContent) add_content(search_->finish());
    // In phase kCallEnd, raw_ can only be the beginning of the call's closing marker, which is not content.
    if (phase_ != Phase::kCallEnd) add_content(std::exchange(raw_, ""));
    if (calls_ == 0) out_.content += std::exchange(spaces_, "");
    note_content(out_.content.size() - before);
    return std::exchange(out_, {});
  }

  const std::vector<TextRange>& content() const { return content_; }

  size_t decided() const {
    const size_t searched = phase_ == Phase::kThoughts  ? thoughts_.held()
                            : phase_ == Phase::kContent ? search_->held()
                                                        : 0;
    return read_ - searched - raw_.size() - spaces_.size();
  }

 private:
  enum class Phase {
    kThoughts,   // in thoughts, or the answer may still turn out to begin with thoughts
    kBody,       // before the content's first byte
    kContent,    // in the content, looking for the marker of a call
    kCallStart,  // between the marker of a call and the call itself
    kCall,       // inside a call
    kCallEnd,    // after a call, where its closing marker or another call may follow
  };

  void step(char c) {
    switch (phase_) {
      case Phase::kThoughts:
        return in_thoughts(c);
      case Phase::kBody:
        return in_body(c);
      case Phase::kContent:
        add_content(search_->push({&c, 1}));
        if (search_->matched()) end_content(c);
        return;
      case Phase::kCallStart:
        return in_call_start(c);
      case Phase::kCall:
        return in_call(c);
      case Phase::kCallEnd:
        return in_call_end(c);
    }
  }

  // Records that the last `bytes` bytes of the text decided so far are content.
  void note_content(size_t bytes) {
    if (bytes == 0) return;
    const size_t end = decided();
    if (content_.empty() || content_.back().end != end - bytes) content_.push_back({end - bytes, end});
    content_.back().end = end;
  }

  void in_thoughts(char c) {
    add_reasoning(thoughts_.push(c));
    raw_ += c;
    if (thoughts_.place() == ThoughtSplitter::Place::kThoughts) raw_.clear();
    if (thoughts_.place() != ThoughtSplitter::Place::kAfter) return;
    phase_ = Phase::kBody;
    replay();
  }

  // Processes the held-back text again, now that the phase to which it belongs is known.
  void replay() {
    for (const char held : std::exchange(raw_, "")) step(held);
  }

  // New lines in the thoughts are held back until another byte follows, because new lines before the closing marker are
  // dropped.
  void add_reasoning(const std::string& text) {
    for (const char c : text) {
      if (c == '\n') {
        new_lines_ += !fresh_;
        continue;
      }
      out_.reasoning.append(std::exchange(new_lines_, 0), '\n') += c;
      fresh_ = false;
    }
  }

  void in_body(char c) {
    raw_ += c;
    if (format_->tools == ToolFormat::kLlama3Json) {
      if (is_json_space(c)) return;
      if (c == '{') return begin_call(make_json_call_reader(&format_->offered));
    }
    begin_content();
    replay();
  }

  void begin_content() {
    phase_ = Phase::kContent;
    search_.emplace(markers_);
  }

  // Adds content. White space is held back until other text follows, because white space before a call is dropped.
  // After a call, white space is content only between two parts of content.
  void add_content(const std::string& text) {
    for (const char c : text) {
      spaces_ += c;
      if (!markers_.empty() && is_json_space(c)) continue;
      if (calls_ > 0 && content_.empty() && out_.content.empty()) spaces_ = c;
      out_.content += std::exchange(spaces_, "");
    }
  }

  // Ends the content at the marker of a call. `last` is the marker's last byte.
  void end_content(char last) {
    raw_ = std::exchange(spaces_, "");
    if (last == '=') {
      raw_ += kFunction;
      return begin_call(make_xml_call_reader(format_->offered));
    }
    raw_ += markers_.front();
    begin_call_start();
  }

  // Adds the held-back text to the content, because it is no call. A marker of a call within this text is not searched
  // for again.
  void show_raw() {
    add_content(std::exchange(raw_, ""));
    begin_content();
  }

  void begin_call_start() {
    in_list_ = false;
    tag_.clear();
    phase_ = Phase::kCallStart;
  }

  void in_call_start(char c) {
    const ToolFormat tools = format_->tools;
    const bool in_tags = tools == ToolFormat::kHermes || tools == ToolFormat::kQwen3Coder;
    if (in_tags && (c == '<' || !tag_.empty())) return in_function_tag(c);
    const bool opens_list = tools == ToolFormat::kMistral && c == '[' && !in_list_;
    in_list_ |= opens_list;
    if (opens_list || is_json_space(c)) {
      raw_ += c;
    } else if (c == '{') {
      raw_ += c;
      begin_call(make_json_call_reader(tools == ToolFormat::kLlama3Json ? &format_->offered : nullptr));
    } else if (tools == ToolFormat::kMistral && !in_list_) {
      begin_call(make_named_call_reader());
      in_call(c);
    } else {
      show_raw();
      step(c);
    }
  }

  // A call in tags is either JSON or in the syntax of Qwen3-Coder; the bytes after the tag decide.
  void in_function_tag(char c) {
    tag_ += c;
    if (!kFunction.starts_with(tag_)) {
      tag_.clear();
      show_raw();
      return step(c);
    }
    raw_ += c;
    if (tag_ == kFunction) begin_call(make_xml_call_reader(format_->offered));
  }

  void begin_call(std::unique_ptr<CallReader> reader) {
    reader_ = std::move(reader);
    begun_ = false;
    phase_ = Phase::kCall;
  }

  void in_call(char c) {
    CallPiece piece;
    const CallReader::Status status = reader_->push(c, piece.name, piece.arguments);
    if (!begun_ && !piece.name.empty()) {
      begun_ = true;
      ++calls_;
      raw_.clear();
      spaces_.clear();
    }
    if (!begun_ && status == CallReader::Status::kMore) raw_ += c;
    piece.index = calls_ - 1;
    if (begun_ && (calls_ == 1 || format_->offered.parallel)) out_.add_call(std::move(piece));
    if (status == CallReader::Status::kMore) return;
    if (status == CallReader::Status::kNoCall)
      show_raw();
    else
      begin_call_end();
    if (status != CallReader::Status::kDone) step(c);
  }

  void begin_call_end() {
    reader_.reset();
    raw_.clear();
    phase_ = Phase::kCallEnd;
  }

  void in_call_end(char c) {
    constexpr std::string_view kClose = "</tool_call>";
    if (is_json_space(c) && raw_.empty()) {
      spaces_ += c;
      return;
    }
    raw_ += c;
    switch (format_->tools) {
      case ToolFormat::kHermes:
      case ToolFormat::kQwen3Coder:
        if (raw_ == kClose) {
          raw_.clear();
          spaces_.clear();
          return begin_content();
        }
        if (kClose.starts_with(raw_)) return;
        break;
      case ToolFormat::kLlama3Json:
        if (c == '{') return begin_call(make_json_call_reader(&format_->offered));
        if (raw_ == ";" || raw_ == "," || is_json_space(c)) return;
        break;
      case ToolFormat::kMistral:
        if (in_list_ && c == ',') {
          phase_ = Phase::kCallStart;
          return;
        }
        if (in_list_ && c == ']') {
          raw_.clear();
          spaces_.clear();
        }
        break;
      case ToolFormat::kNone:
        break;
    }
    begin_content();
    replay();
  }

  static constexpr std::string_view kFunction = "<function=";

  const std::shared_ptr<const AnswerFormat> format_;
  const std::vector<std::string> markers_;
  ThoughtSplitter thoughts_;
  Phase phase_ = Phase::kThoughts;
  AnswerPiece out_;
  size_t read_ = 0;                    // bytes of text read
  std::vector<TextRange> content_;     // ranges of the text that are content
  std::optional<StopMatcher> search_;  // finds the marker of a call in content
  std::string raw_;                    // text that is held back until its meaning is known
  std::string tag_;                    // the bytes read of an incomplete tag
  size_t new_lines_ = 0;
  bool fresh_ = true;  // no byte of the reasoning was returned yet
  std::string spaces_;
  std::unique_ptr<CallReader> reader_;
  bool begun_ = false;    // the beginning of the current call was returned
  bool in_list_ = false;  // inside Mistral's JSON array of calls
  size_t calls_ = 0;      // number of calls returned, including the current one
};

AnswerParser::AnswerParser(std::shared_ptr<const AnswerFormat> format)
    : machine_(std::make_unique<Machine>(std::move(format))) {}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;

AnswerPiece AnswerParser::push(std::string_view text) { return machine_->push(text); }
AnswerPiece AnswerParser::finish() { return machine_->finish(); }
const std::vector<TextRange>& AnswerParser::content() const { return machine_->content(); }
size_t AnswerParser::decided() const { return machine_->decided(); }

}  // namespace specdec::deploy
