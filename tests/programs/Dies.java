import java.io.BufferedReader;
import java.io.InputStreamReader;

/**
 * Says `ready` and reads a line: `fault` makes kill(1) send SIGSEGV, and a number ends it with that exit status. A JDK from
 * 26 on does not let a program write to address 0 without an option, which earlier JDKs do not know.
 */
public class Dies {
    public static void main(String[] args) throws Exception {
        System.out.println("ready");
        String line = new BufferedReader(new InputStreamReader(System.in)).readLine();
        if (line.equals("fault"))
            fault();
        System.exit(Integer.parseInt(line));
    }

    private static void fault() throws Exception {
        String pid = Long.toString(ProcessHandle.current().pid());
        new ProcessBuilder("kill", "-SEGV", pid).start();
        // The JVM ends meanwhile.
        Thread.sleep(Long.MAX_VALUE);
    }
}
