import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.List;
import javax.tools.ToolProvider;

/** Compiles a file with javac, in one process, as often as each line of stdin says. Arguments: the file, a directory for the classes. */
class Javac {
    public static void main(String[] args) throws Exception {
        var compiler = ToolProvider.getSystemJavaCompiler();
        var files = compiler.getStandardFileManager(null, null, null);
        var options = List.of("-proc:none", "-d", args[1]);
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String times; (times = lines.readLine()) != null; System.out.println("done")) {
            for (int n = Integer.parseInt(times); n > 0; n--) {
                if (!compiler.getTask(null, files, null, options, null, files.getJavaFileObjects(new File(args[0]))).call()) {
                    System.exit(1);
                }
            }
        }
    }
}
