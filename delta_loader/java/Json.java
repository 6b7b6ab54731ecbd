package io.github.kafkadeltaexpress;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.SingleAction;
import org.apache.spark.sql.delta.util.JsonUtils;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** What crosses the border to Python is JSON, written and read by Delta's own mapper. */
final class Json {
  static final ObjectMapper MAPPER = JsonUtils.mapper();

  private Json() {}

  static JsonNode read(String text) {
    try {
      return MAPPER.readTree(text);
    } catch (JsonProcessingException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** The actions of an array of a log's lines. */
  static <T extends Action> List<T> actions(JsonNode lines) {
    List<T> actions = new ArrayList<>(lines.size());
    for (JsonNode line : lines) {
      actions.add(action(line));
    }
    return actions;
  }

  @SuppressWarnings("unchecked") // the caller knows the kind that it asked Python for
  static <T extends Action> T action(JsonNode line) {
    try {
      return (T) MAPPER.treeToValue(line, SingleAction.class).unwrap();
    } catch (JsonProcessingException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** The actions as an array of a log's lines. */
  static String lines(Collection<? extends Action> actions) {
    StringBuilder text = new StringBuilder("[");
    for (Action action : actions) {
      text.append(text.length() > 1 ? "," : "").append(action.json());
    }
    return text.append("]").toString();
  }

  static ArrayNode texts(Seq<String> values) {
    ArrayNode array = MAPPER.createArrayNode();
    CollectionConverters.asJava(values).forEach(array::add);
    return array;
  }

  static List<String> texts(JsonNode array) {
    List<String> values = new ArrayList<>();
    array.forEach(value -> values.add(value.asText()));
    return values;
  }

  /** An immutable Scala sequence of a Java list. */
  static <T> Seq<T> seq(List<T> list) {
    return CollectionConverters.asScala(list).toList();
  }

  // Delta's collections are Java's in one release and Scala's in another.
  static <T> Iterable<T> each(Iterable<T> collection) {
    return collection;
  }

  static <T> Iterable<T> each(scala.collection.Iterable<T> collection) {
    return CollectionConverters.asJava(collection);
  }
}
